package deployments

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionapi "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"aliquot.dev/aliquot/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

type rendering struct {
	name string
	args []string
}

// renderings are what the golden files hold: nothing set, and everything.
var renderings = []rendering{
	{name: "default"},
	{name: "full", args: []string{"--values", "testdata/full.values.yaml"}},
}

func TestLint(t *testing.T) {
	for _, r := range renderings {
		t.Run(r.name, func(t *testing.T) {
			if out, err := helm(t, append([]string{"lint", "--strict", "--quiet", chart}, r.args...)...); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func TestGolden(t *testing.T) {
	for _, r := range renderings {
		t.Run(r.name, func(t *testing.T) {
			golden(t, r.name+".golden.yaml", mustTemplate(t, r.args...))
		})
	}
}

// What helm says after an install, which `helm template` leaves out.
func TestGoldenNotes(t *testing.T) {
	out, err := helm(t, "install", release, chart, "--namespace", namespace, "--dry-run=client")
	if err != nil {
		t.Fatal(err)
	}
	_, notes, found := strings.Cut(out, "\nNOTES:\n")
	if !found {
		t.Fatalf("no notes in:\n%s", out)
	}
	golden(t, "notes.golden.txt", notes)
	_, claim, _ := strings.Cut(notes, "<<'YAML'\n")
	claim, _, _ = strings.Cut(claim, "   YAML\n")
	if objects := decode(t, strings.ReplaceAll("\n"+claim, "\n   ", "\n")); len(objects) != 2 {
		t.Errorf("got %d objects in the notes' example, want a template and a pod", len(objects))
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); if that is meant, run `go test ./deployments -update`:\n%s", path, diff)
	}
}

// kinds are those that the chart may have objects of.
var kinds = func() *runtime.Scheme {
	kinds := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(kinds))
	utilruntime.Must(apiextensionsv1.AddToScheme(kinds))
	utilruntime.Must(v1alpha1.AddToScheme(kinds))
	return kinds
}()

// decode reads every object of a YAML stream into the type that its API has, so an unknown or misspelt field fails.
func decode(t *testing.T, stream string) []runtime.Object {
	t.Helper()
	var objects []runtime.Object
	for document := range strings.SplitSeq("\n"+stream, "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
		if kind.Kind == "" {
			continue // a document of comments
		}
		if kind.GroupVersionKind().Group == "cert-manager.io" {
			continue // its module is not worth its weight for two small objects, which the golden files show
		}
		object, err := kinds.New(kind.GroupVersionKind())
		if err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Fatalf("decode %s: %v in:\n%s", kind.Kind, err, document)
		}
		objects = append(objects, object)
	}
	return objects
}

// only returns the one object of type T.
func only[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	found := all[T](objects)
	if len(found) != 1 {
		t.Fatalf("got %d objects of type %T, want 1", len(found), *new(T))
	}
	return found[0]
}

func all[T runtime.Object](objects []runtime.Object) []T {
	var found []T
	for _, o := range objects {
		if typed, ok := o.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

// named returns the one object of type T whose name ends so.
func named[T interface {
	runtime.Object
	metav1.Object
}](t *testing.T, objects []runtime.Object, suffix string) T {
	t.Helper()
	found := slices.DeleteFunc(all[T](objects), func(o T) bool { return !strings.HasSuffix(o.GetName(), suffix) })
	if len(found) != 1 {
		t.Fatalf("got %d objects of type %T whose name ends in %s, want 1", len(found), *new(T), suffix)
	}
	return found[0]
}

// part returns the controller's objects, or all others.
func part(objects []runtime.Object, controller bool) []runtime.Object {
	return slices.DeleteFunc(slices.Clone(objects), func(o runtime.Object) bool {
		return strings.HasSuffix(o.(metav1.Object).GetName(), "-controller") != controller
	})
}

// The service account is one string in four objects. Were the policy's another, it would match nobody and guard nothing.
func TestServiceAccountIsOne(t *testing.T) {
	for _, r := range slices.Concat(renderings, []rendering{
		{"not created", []string{"--set", "serviceAccount.create=false,serviceAccount.name=theirs"}},
		{"other namespace", []string{"--set", "namespaceOverride=gpus,fullnameOverride=shares"}},
	}) {
		t.Run(r.name, func(t *testing.T) {
			objects := part(decode(t, mustTemplate(t, r.args...)), false)
			daemonSet := only[*appsv1.DaemonSet](t, objects)
			pod := daemonSet.Spec.Template.Spec
			want := rbacv1.Subject{Kind: "ServiceAccount", Name: pod.ServiceAccountName, Namespace: daemonSet.Namespace}

			binding := only[*rbacv1.ClusterRoleBinding](t, objects)
			if diff := cmp.Diff([]rbacv1.Subject{want}, binding.Subjects); diff != "" {
				t.Errorf("subjects (-DaemonSet +ClusterRoleBinding):\n%s", diff)
			}
			named[*rbacv1.ClusterRole](t, objects, binding.RoleRef.Name)
			policy := named[*admissionapi.ValidatingAdmissionPolicy](t, objects, "-resourceslices")
			user := "'system:serviceaccount:" + want.Namespace + ":" + want.Name + "'"
			if got := policy.Spec.MatchConditions[0].Expression; !strings.HasSuffix(got, " == "+user) {
				t.Errorf("policy matches %s, want user %s", got, user)
			}
			if got := named[*admissionapi.ValidatingAdmissionPolicyBinding](t, objects, "-resourceslices").Spec.PolicyName; got != policy.Name {
				t.Errorf("binding names policy %q, the policy is %q", got, policy.Name)
			}
			for _, account := range all[*corev1.ServiceAccount](objects) {
				if account.Name != want.Name || account.Namespace != want.Namespace {
					t.Errorf("service account is %s/%s, want %s/%s", account.Namespace, account.Name, want.Namespace, want.Name)
				}
				if account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken {
					t.Error("any pod that names the service account gets its token")
				}
			}
			if pod.AutomountServiceAccountToken == nil || !*pod.AutomountServiceAccountToken {
				t.Error("the plugin's pod gets no token where the account does not give one")
			}
		})
	}
}

func TestDaemonSetSelectsItsPods(t *testing.T) {
	for _, r := range renderings {
		t.Run(r.name, func(t *testing.T) {
			daemonSet := only[*appsv1.DaemonSet](t, decode(t, mustTemplate(t, r.args...)))
			for key, value := range daemonSet.Spec.Selector.MatchLabels {
				if got := daemonSet.Spec.Template.Labels[key]; got != value {
					t.Errorf("pod's label %s = %q, the selector wants %q", key, got, value)
				}
			}
			for key := range daemonSet.Spec.Selector.MatchLabels {
				if key == "app.kubernetes.io/version" || key == "helm.sh/chart" {
					t.Errorf("the selector has %s, which no upgrade may change", key)
				}
			}
		})
	}
}

// A volume that no container mounts, a mount elsewhere than its flag says or a typo of a flag shows on the node only.
func TestDaemonSetFlagsAndDirectories(t *testing.T) {
	for _, r := range renderings {
		t.Run(r.name, func(t *testing.T) {
			pod := only[*appsv1.DaemonSet](t, decode(t, mustTemplate(t, r.args...))).Spec.Template.Spec
			plugin := pod.Containers[0]
			flags := flagsSet(plugin)
			hostPath := map[string]string{}
			for _, v := range pod.Volumes {
				hostPath[v.Name] = v.HostPath.Path
			}
			got := map[string][2]string{}
			for _, m := range plugin.VolumeMounts {
				got[m.Name] = [2]string{hostPath[m.Name], m.MountPath}
			}
			want := map[string][2]string{
				"kubelet-registrar": {flags["kubelet-registrar-dir"], flags["kubelet-registrar-dir"]},
				"kubelet-plugins":   {flags["kubelet-plugins-dir"], flags["kubelet-plugins-dir"]},
				"cdi":               {flags["cdi-dir"], flags["cdi-dir"]},
				"run":               {flags["run-dir"], flags["run-dir"]},
				"driver-root":       {flags["driver-root"], flags["driver-root-mount"]},
			}
			delete(got, "host-proc") // full.values.yaml's own
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("host and container path of mounts (-flags +mounted):\n%s", diff)
			}
			if len(pod.Volumes) != len(plugin.VolumeMounts) {
				t.Errorf("%d volumes, %d mounts", len(pod.Volumes), len(plugin.VolumeMounts))
			}
			for _, name := range []string{"health-address", "context-reserve", "beside-device-plugin", "fatal-taint", "degraded-taint", "v", "node-name", "pod-uid", "https-proxy",
				"node-ip", "tracing-endpoint", "tracing-sampling-rate-per-million"} {
				delete(flags, name)
			}
			if len(flags) != len(want)+1 {
				t.Errorf("flags without a directory: %v", flags)
			}
		})
	}
}

// flagsSet are a program's flags by name, from its arguments and its environment.
func flagsSet(container corev1.Container) map[string]string {
	flags := map[string]string{}
	for _, e := range container.Env {
		flags[strings.ToLower(strings.ReplaceAll(e.Name, "_", "-"))] = e.Value
	}
	for _, arg := range container.Args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		flags[name] = value
	}
	return flags
}

// doctor, run in the plugin's container, is given no arguments.
func TestDoctorLooksWhereThePluginDoes(t *testing.T) {
	plugin := only[*appsv1.DaemonSet](t, decode(t, mustTemplate(t))).Spec.Template.Spec.Containers[0]
	plugin.Args = nil
	inherited := flagsSet(plugin)
	for _, name := range []string{"node-name", "driver-root", "driver-root-mount", "kubelet-registrar-dir", "kubelet-plugins-dir", "cdi-dir", "run-dir", "beside-device-plugin"} {
		if _, ok := inherited[name]; !ok {
			t.Errorf("the environment does not set --%s", name)
		}
	}
}

func TestRightsAreTheLeast(t *testing.T) {
	objects := part(decode(t, mustTemplate(t)), false)
	role := named[*rbacv1.ClusterRole](t, objects, only[*rbacv1.ClusterRoleBinding](t, objects).RoleRef.Name)
	sameRights(t, role.Rules, map[string]string{
		"resource.k8s.io/resourceclaims": "get list",
		"resource.k8s.io/resourceslices": "list watch create update delete",
		"/nodes":                         "get list watch",
		"events.k8s.io/events":           "create patch",
	})
}

// sameRights compares rules with verbs by <group>/<resource>, or by <group>/<resource>/<name> where a rule names objects.
func sameRights(t *testing.T, rules []rbacv1.PolicyRule, allowed map[string]string) {
	t.Helper()
	got := map[string]string{}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				key := strings.Join(append([]string{group, resource}, rule.ResourceNames...), "/")
				got[key] = strings.Join(rule.Verbs, " ")
			}
		}
	}
	if diff := cmp.Diff(allowed, got); diff != "" {
		t.Errorf("rights (-want +got): a new one needs a reason and a line here\n%s", diff)
	}
}

// The node's agent is privileged, but its root filesystem is not a place to write to.
func TestPluginContainer(t *testing.T) {
	pod := only[*appsv1.DaemonSet](t, decode(t, mustTemplate(t))).Spec.Template.Spec
	if len(pod.Containers) != 1 || len(pod.InitContainers) != 0 {
		t.Fatalf("got %d containers and %d init containers, want the plugin alone", len(pod.Containers), len(pod.InitContainers))
	}
	plugin := pod.Containers[0]
	if s := plugin.SecurityContext; s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
		t.Error("the root filesystem is writable")
	}
	if pod.HostNetwork || pod.HostIPC {
		t.Error("the pod shares a namespace of the host that it does not need")
	}
	if !pod.HostPID {
		t.Error("in a pid namespace of its own the plugin knows no process of any share")
	}
	fields := map[string]string{}
	for _, e := range plugin.Env {
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			fields[e.Name] = e.ValueFrom.FieldRef.FieldPath
		}
	}
	want := map[string]string{
		"NODE_NAME": "spec.nodeName",
		"POD_UID":   "metadata.uid",
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	for _, m := range plugin.VolumeMounts {
		if m.Name == "driver-root" && !m.ReadOnly {
			t.Error("the host's driver root is writable")
		}
	}
	for name, probe := range map[string]*corev1.Probe{
		"/healthz": plugin.LivenessProbe,
		"/readyz":  plugin.ReadinessProbe,
	} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != name || probe.HTTPGet.Port.String() != plugin.Ports[0].Name {
			t.Errorf("no probe of %s at port %s: %+v", name, plugin.Ports[0].Name, probe)
		}
	}
}

// null, which is the only way to take a map's default away, runs the plugin on every node.
func TestAffinityCanBeTakenAway(t *testing.T) {
	pod := only[*appsv1.DaemonSet](t, decode(t, mustTemplate(t,
		"--set", "kubeletPlugin.affinity=null,kubeletPlugin.tolerations=null,deviceClasses=null"))).Spec.Template.Spec
	if pod.Affinity != nil || pod.Tolerations != nil {
		t.Errorf("got affinity %v and tolerations %v, want none", pod.Affinity, pod.Tolerations)
	}
}

func TestDefaultClasses(t *testing.T) {
	got := map[string]string{}
	for _, class := range all[*resourceapi.DeviceClass](decode(t, mustTemplate(t))) {
		name := ""
		if class.Spec.ExtendedResourceName != nil {
			name = *class.Spec.ExtendedResourceName
		}
		if !strings.HasPrefix(class.Name, "mig-") { // of profiles
			got[class.Name] = name
		}
	}
	want := map[string]string{"gpu.aliquot.dev": "nvidia.com/gpu", "share.gpu.aliquot.dev": "", "mig.gpu.aliquot.dev": ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("classes and their extended resources (-want +got):\n%s", diff)
	}
}
