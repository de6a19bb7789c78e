package deployments

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// What an admin mistypes is refused before anything is installed, with the value's path and what is wrong.
func TestBadValuesAreRefused(t *testing.T) {
	const plugin = "kubeletPlugin.containers.plugin."
	tests := []struct {
		name string
		set  string
		json bool
		want []string // all in the message
	}{
		{name: "unknown value", set: "nvidiaDriverRot=/run", want: []string{"nvidiaDriverRot", "not allowed"}},
		{name: "unknown value of the plugin", set: "kubeletPlugin.priorityClass=x", want: []string{"/kubeletPlugin", "priorityClass", "not allowed"}},
		{name: "unknown container", set: "kubeletPlugin.containers.gpus.env=null", json: true, want: []string{"/kubeletPlugin/containers", "gpus", "not allowed"}},
		{name: "relative driver root", set: "nvidiaDriverRoot=run/nvidia", want: []string{"/nvidiaDriverRoot", "run/nvidia"}},
		{name: "parent in a path", set: "runDirectory=/run/../etc", want: []string{"/runDirectory", "/run/../etc"}},
		{name: "root as run directory", set: "runDirectory=/", want: []string{"/runDirectory"}},
		{name: "slash at the end", set: "cdiDirectory=/etc/cdi/", want: []string{"/cdiDirectory", "/etc/cdi/"}},
		{name: "kubelet directory too long for a socket", set: "kubeletPlugin.kubeletPluginsDirectoryPath=/" + strings.Repeat("x", 90),
			want: []string{"/kubeletPlugin/kubeletPluginsDirectoryPath", "maxLength", "65"}},
		{name: "context reserve without a unit that the plugin knows", set: "contextReserve=half", want: []string{"/contextReserve", "half"}},
		{name: "effect that taints do not have", set: "healthTaints.fatal=PreferNoSchedule", want: []string{"/healthTaints/fatal", "NoExecute"}},
		{name: "negative context reserve", set: "contextReserve=-1", want: []string{"/contextReserve", "minimum"}},
		{name: "collector by URL", set: "tracing.endpoint=http://collector:4317", want: []string{"/tracing/endpoint", "http://collector:4317"}},
		{name: "more traces than there are", set: "tracing.samplingRatePerMillion=1000001", want: []string{"/tracing/samplingRatePerMillion", "maximum"}},
		{name: "tag in the repository", set: "image.repository=example.com/plugin:v1", want: []string{"/image/repository"}},
		{name: "pull policy", set: "image.pullPolicy=Sometimes", want: []string{"/image/pullPolicy", "IfNotPresent"}},
		{name: "verbosity", set: "logVerbosity=debug", want: []string{"/logVerbosity", "debug"}},
		{name: "verbosity too high", set: "logVerbosity=10", want: []string{"/logVerbosity", "maximum"}},
		{name: "surge and gap", set: "kubeletPlugin.updateStrategy.rollingUpdate.maxUnavailable=1", want: []string{"/kubeletPlugin/updateStrategy/rollingUpdate"}},
		{name: "no node at a time", set: "kubeletPlugin.updateStrategy.rollingUpdate.maxSurge=0", want: []string{"/kubeletPlugin/updateStrategy/rollingUpdate"}},
		{name: "UID of the chart", set: plugin + `env=[{"name":"POD_UID","value":"other"}]`, json: true, want: []string{"/kubeletPlugin/containers/plugin/env/0/name"}},
		{name: "port", set: plugin + "healthcheckPort=70000", want: []string{"healthcheckPort", "65,?535|65535"}},
		{name: "environment of the chart", set: plugin + `env=[{"name":"NODE_NAME","value":"other"}]`, json: true, want: []string{"/kubeletPlugin/containers/plugin/env/0/name"}},
		{name: "flag of the chart", set: plugin + `env=[{"name":"CDI_DIR","value":"/other"}]`, json: true, want: []string{"/kubeletPlugin/containers/plugin/env/0/name"}},
		{name: "volume of the chart", set: `kubeletPlugin.extraVolumes=[{"name":"cdi","emptyDir":{}}]`, json: true, want: []string{"/kubeletPlugin/extraVolumes/0/name"}},
		{name: "mount of the chart", set: plugin + `extraVolumeMounts=[{"name":"cdi","mountPath":"/x"}]`, json: true, want: []string{"/kubeletPlugin/containers/plugin/extraVolumeMounts/0/name"}},
		{name: "mount without a path", set: plugin + `extraVolumeMounts=[{"name":"x"}]`, json: true, want: []string{"/kubeletPlugin/containers/plugin/extraVolumeMounts/0", "mountPath"}},
		{name: "toleration", set: `kubeletPlugin.tolerations=[{"effect":"Never"}]`, json: true, want: []string{"/kubeletPlugin/tolerations/0/effect", "NoSchedule"}},
		{name: "account neither made nor named", set: "serviceAccount.create=false", want: []string{"serviceAccount.name", "required"}},
		{name: "class without name", set: `deviceClasses=[{"selectors":["true"]}]`, json: true, want: []string{"/deviceClasses/0", "name"}},
		{name: "class name", set: `deviceClasses=[{"name":"My_Class"}]`, json: true, want: []string{"/deviceClasses/0/name", "My_Class"}},
		{name: "class twice", set: `deviceClasses=[{"name":"a"},{"name":"a"}]`, json: true, want: []string{`deviceClasses and migProfiles: name "a" stands there twice`}},
		{name: "extended resource twice", set: `deviceClasses=[{"name":"a","extendedResourceName":"a/a"},{"name":"b","extendedResourceName":"a/a"}]`, json: true,
			want: []string{`deviceClasses and migProfiles: extendedResourceName "a/a" stands there twice`}},
		{name: "extended resource without domain", set: `deviceClasses=[{"name":"a","extendedResourceName":"gpu"}]`, json: true, want: []string{"/deviceClasses/0/extendedResourceName"}},
		{name: "class of another type", set: `deviceClasses=[{"name":"a","type":"vgpu"}]`, json: true, want: []string{"/deviceClasses/0/type"}},
		{name: "MIG profile", set: `migProfiles=["1g.10gb' || true"]`, json: true, want: []string{"/migProfiles/0"}},
		{name: "MIG profile twice", set: `migProfiles=["1g.10gb","1g.10gb"]`, json: true, want: []string{`name "mig-1g.10gb.gpu.aliquot.dev" stands there twice`}},
		{name: "MIG profile of a class", set: `deviceClasses=[{"name":"a","extendedResourceName":"nvidia.com/mig-1g.10gb"}]`, json: true, want: []string{`extendedResourceName "nvidia.com/mig-1g.10gb" stands there twice`}},
		{name: "parameter of a class", set: `deviceClasses=[{"name":"a","parameters":{"corePolicy":"burst"}}]`, json: true, want: []string{"/deviceClasses/0/parameters/corePolicy", "Burst"}},
		{name: "unknown parameter of a class", set: `deviceClasses=[{"name":"a","parameters":{"maxMemory":"1Gi"}}]`, json: true, want: []string{"/deviceClasses/0/parameters", "maxMemory"}},
		{name: "class of another's", set: `controller.deviceClasses=["it's"]`, json: true, want: []string{"/controller/deviceClasses/0"}},
		{name: "config of a class", set: `deviceClasses=[{"name":"a","config":[]}]`, json: true, want: []string{"/deviceClasses/0", "config", "not allowed"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			flag := "--set"
			if tc.json {
				flag = "--set-json"
			}
			_, err := template(t, flag, tc.set)
			if err == nil {
				t.Fatalf("%s was accepted", tc.set)
			}
			for _, want := range tc.want {
				if !regexp.MustCompile(want).MatchString(err.Error()) {
					t.Errorf("%q is not in the message:\n%v", want, err)
				}
			}
		})
	}
}

func TestOldKubernetesIsRefused(t *testing.T) {
	for version, ok := range map[string]bool{"1.35.4": false, "1.36.0-rc.1": true, "1.36.2-gke.100": true, "1.37.2": true} {
		_, err := helm(t, "template", release, chart, "--kube-version", version)
		if (err == nil) != ok {
			t.Errorf("Kubernetes %s: accepted is %t, want %t: %v", version, err == nil, ok, err)
		}
	}
}

// Helm gives a chart that is a dependency a value of its own.
func TestGlobalValuesAreAccepted(t *testing.T) {
	mustTemplate(t, "--set", "global.imageRegistry=example.com")
}

// The README has one row for each value, and its default.
func TestREADMEHasEveryValue(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(chart, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Za-z.]+)` \\|").FindAllSubmatch(readme, -1) {
		got = append(got, string(row[1]))
	}
	slices.Sort(got)
	if diff := cmp.Diff(documented(t), got); diff != "" {
		t.Errorf("values (-values.yaml +README.md):\n%s", diff)
	}
}

// documented lists the values of the chart in the depth in which they are explained: what has the shape of a Kubernetes
// field (affinity, resources, ...) is one value.
func documented(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(data, &values); err != nil {
		t.Fatal(err)
	}
	groups := []string{"image", "serviceAccount", "kubeletPlugin", "kubeletPlugin.containers", "kubeletPlugin.containers.plugin",
		"controller", "controller.serviceAccount", "controller.certManager", "controller.containers", "controller.containers.controller"}
	var paths []string
	var walk func(prefix string, values map[string]any)
	walk = func(prefix string, values map[string]any) {
		for name, value := range values {
			path := prefix + name
			if slices.Contains(groups, path) {
				walk(path+".", value.(map[string]any))
			} else {
				paths = append(paths, path)
			}
		}
	}
	walk("", values)
	slices.Sort(paths)
	return paths
}
