package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelet "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"aliquot.dev/aliquot/e2e/cluster/image"
)

// writeNode writes what a node finds in its /etc.
func (p *plan) writeNode(index int) error {
	node := p.Nodes[index]
	etc := p.node(node.Name, "etc")
	config, err := yaml.Marshal(kubeletConfig(nodeAddress(index)))
	if err != nil {
		return err
	}
	spec, err := p.baseSpec(node)
	if err != nil {
		return err
	}
	files := map[string]string{
		"kubernetes/kubelet.yaml":       string(config),
		"containerd/config.toml":        containerdConfig(),
		"containerd/base-spec.json":     spec,
		"cni/net.d/10-aliquot.conflist": cniConfig(podRange(index)),
		"hostname":                      node.Name + "\n",
		"hosts":                         fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", nodeAddress(index), node.Name),
		"passwd":                        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"group":                         "root:x:0:\nnogroup:x:65534:\n",
		"nsswitch.conf":                 "passwd: files\ngroup: files\nhosts: files dns\n",
		"resolv.conf":                   "",
	}
	for name, content := range files {
		path := filepath.Join(etc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return copyLoaderFiles(etc)
}

// copyLoaderFiles copies what tells this machine's loader where the libraries
// in /usr are.
func copyLoaderFiles(etc string) error {
	for _, name := range []string{"ld.so.cache", "ld.so.conf", "os-release"} {
		content, err := os.ReadFile("/etc/" + name)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(etc, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func kubeletConfig(address string) *kubelet.KubeletConfiguration {
	yes, no := true, false
	all := int32(100)
	return &kubelet.KubeletConfiguration{
		TypeMeta:           metav1.TypeMeta{APIVersion: kubelet.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"},
		Address:            address,
		HealthzBindAddress: address,
		Authentication: kubelet.KubeletAuthentication{
			X509:      kubelet.KubeletX509Authentication{ClientCAFile: "/etc/kubernetes/ca.crt"},
			Webhook:   kubelet.KubeletWebhookAuthentication{Enabled: &yes},
			Anonymous: kubelet.KubeletAnonymousAuthentication{Enabled: &no},
		},
		Authorization:            kubelet.KubeletAuthorization{Mode: kubelet.KubeletAuthorizationModeWebhook},
		TLSCertFile:              "/etc/kubernetes/kubelet.crt",
		TLSPrivateKeyFile:        "/etc/kubernetes/kubelet.key",
		ContainerRuntimeEndpoint: "unix:///run/containerd/containerd.sock",
		ResolverConfig:           new(string),
		// cgroups: either version, without systemd, and no limits on the whole.
		CgroupDriver:           "cgroupfs",
		FailCgroupV1:           &no,
		EnforceNodeAllocatable: []string{"none"},
		FailSwapOn:             &no,
		MakeIPTablesUtilChains: &no, // there may be no iptables
		// The machine's disk is not the node's to judge: evict nothing, keep all images.
		LocalStorageCapacityIsolation: &no,
		EvictionHard:                  map[string]string{"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
		ImageGCHighThresholdPercent:   &all,
		// A program that is killed again and again is back at once, as one that is killed once.
		CrashLoopBackOff: kubelet.CrashLoopBackOffConfig{MaxContainerRestartPeriod: &metav1.Duration{Duration: time.Second}},
		// A node's state is seen soon after it changes.
		NodeStatusUpdateFrequency: metav1.Duration{Duration: 5 * time.Second},
	}
}

func containerdConfig() string {
	return fmt.Sprintf(`version = 3
root = '/var/lib/containerd'
state = '/run/containerd'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '%s'

[plugins.'io.containerd.cri.v1.runtime']
# Raising a process above the others needs a capability that a sandboxed root lacks.
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
base_runtime_spec = '/etc/containerd/base-spec.json'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = '%s/runc'
SystemdCgroup = false
`, image.PauseName, nodePrograms)
}

func cniConfig(pods string) string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "aliquot",
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "%s"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    }
  ]
}
`, pods)
}

// baseSpec is the OCI spec that containerd starts every container's from: its
// own default and the node's container mounts.
func (p *plan) baseSpec(node Node) (string, error) {
	out, err := exec.Command(p.program("ctr"), "oci", "spec").Output()
	if err != nil {
		return "", fmt.Errorf("ask containerd's default OCI spec: %w", err)
	}
	return addMounts(out, node.ContainerMounts)
}

func addMounts(spec []byte, mounts []Mount) (string, error) {
	decoder := json.NewDecoder(bytes.NewReader(spec))
	decoder.UseNumber() // the limits in it are larger than a float holds
	var document map[string]any
	if err := decoder.Decode(&document); err != nil {
		return "", fmt.Errorf("read containerd's default OCI spec: %w", err)
	}
	list, _ := document["mounts"].([]any)
	for _, mount := range mounts {
		options := []string{"rbind", "rw"}
		if mount.ReadOnly {
			options = []string{"rbind", "ro"}
		}
		list = append(list, map[string]any{
			"destination": mount.Target, "type": "bind", "source": mount.Source, "options": options,
		})
	}
	document["mounts"] = list
	out, err := json.MarshalIndent(document, "", "  ")
	return string(out), err
}
