//go:build e2e

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aliquot.dev/aliquot/e2e/cluster"
	"aliquot.dev/aliquot/e2e/cluster/image"
	"aliquot.dev/aliquot/e2e/simdriver"
)

// shared is the cluster of all tests here but those that kill one.
var shared *cluster.Cluster

func TestMain(m *testing.M) {
	cluster.Reexec()
	if dir := os.Getenv(starterEnv); dir != "" {
		beStarter(dir)
	}
	os.Exit(runWithCluster(m))
}

func runWithCluster(m *testing.M) int {
	hardware, err := os.MkdirTemp("", "aliquot-e2e-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(hardware)
	if err := os.WriteFile(filepath.Join(hardware, "model"), []byte("simulated\n"), 0o644); err != nil {
		return fail(err)
	}
	gpus, err := simdriver.Load("t4x4")
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	shared, err = cluster.Start(ctx, cluster.Config{Log: os.Stderr, Nodes: []cluster.Node{
		{
			Name:            "node-1",
			Labels:          map[string]string{"example.com/kind": "with-hardware"},
			Mounts:          []cluster.Mount{{Source: hardware, Target: "/run/hardware"}},
			Hardware:        &gpus,
			ContainerMounts: []cluster.Mount{{Source: "/run/hardware", Target: "/run/model", ReadOnly: true}},
		},
		{Name: "node-2", Hardware: &gpus},
	}})
	if err != nil {
		return fail(err)
	}
	code := m.Run()
	if code != 0 {
		logs, _ := os.MkdirTemp("", "aliquot-e2e-logs-")
		fmt.Fprintf(os.Stderr, "logs of the cluster: %s (%v)\n", logs, shared.DumpLogs(context.Background(), logs))
	}
	dir := shared.Dir()
	if err := shared.Stop(); err != nil {
		return fail(err)
	}
	if left := leftovers(dir); len(left) > 0 {
		return fail(fmt.Errorf("Stop left %v", left))
	}
	return code
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// runPod starts a pod of the base image on a node and waits until it runs.
func runPod(t *testing.T, node, name, imageName, script string) {
	t.Helper()
	command, err := json.Marshal([]string{"sh", "-c", script})
	if err != nil {
		t.Fatal(err)
	}
	manifest := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {
  "nodeName": %q, "terminationGracePeriodSeconds": 0,
  "containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": %s}]}}`, name, node, imageName, command)
	if err := shared.Apply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = shared.Kubectl(context.Background(), "delete", "pod", name, "--wait=false") })
	kubectl(t, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=2m")
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := shared.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func onNode(t *testing.T, node string, argv ...string) string {
	t.Helper()
	out, err := shared.OnNode(t.Context(), node, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPodsRunOnEveryNodeAndReachEachOther(t *testing.T) {
	addresses := make(map[string]string)
	for _, node := range shared.Nodes() {
		name := "web-" + node
		runPod(t, node, name, image.BaseName, "mkdir /www; echo page of $HOSTNAME | tee /www/index.html; exec httpd -f -h /www")
		if got, want := kubectl(t, "logs", name), "page of "+name+"\n"; got != want {
			t.Errorf("logs of %s: %q, want %q", name, got, want)
		}
		addresses[node] = kubectl(t, "get", "pod", name, "--output=jsonpath={.status.podIP}")
	}
	for _, node := range shared.Nodes() {
		for peer, address := range addresses {
			got := kubectl(t, "exec", "web-"+node, "--", "wget", "-q", "-O-", "http://"+address+"/")
			if want := "page of web-" + peer + "\n"; got != want {
				t.Errorf("%s reads from %s: %q, want %q", node, peer, got, want)
			}
		}
	}
}

func TestContainerMountsAreInEveryContainerOfTheirNode(t *testing.T) {
	const script = "cat /run/model/model; touch /run/model/x; sleep 1000"
	runPod(t, "node-1", "mounted", image.BaseName, script)
	runPod(t, "node-2", "unmounted", image.BaseName, script)
	if got := kubectl(t, "logs", "mounted"); !strings.Contains(got, "simulated\n") || !strings.Contains(got, "Read-only") {
		t.Errorf("on the node with the mount, a container sees %q", got)
	}
	if got := kubectl(t, "logs", "unmounted"); strings.Contains(got, "simulated") {
		t.Errorf("on the other node, a container sees %q", got)
	}
	if got := kubectl(t, "get", "nodes", "--selector=example.com/kind=with-hardware", "--output=name"); got != "node/node-1\n" {
		t.Errorf("labelled nodes: %q", got)
	}
}

func TestNodesHaveHardwareOfTheirOwn(t *testing.T) {
	lists := make(map[string]string)
	for _, node := range shared.Nodes() {
		lists[node] = onNode(t, node, "/run/nvidia/driver/usr/bin/nvidia-smi", "-L")
		if got := strings.Count(lists[node], "UUID: GPU-"); got != 4 {
			t.Errorf("%s lists %d GPUs, want 4:\n%s", node, got, lists[node])
		}
		driver, err := shared.Driver(node)
		if err != nil {
			t.Fatal(err)
		}
		ledger, err := driver.Ledger()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(lists[node], ledger.GPUs[0].UUID) {
			t.Errorf("the ledger of %s has GPU %s, nvidia-smi lists\n%s", node, ledger.GPUs[0].UUID, lists[node])
		}
	}
	if lists["node-1"] == lists["node-2"] {
		t.Errorf("both nodes have the same GPUs:\n%s", lists["node-1"])
	}
	runPod(t, "node-2", "hardware", image.BaseName, "head -c 20 /run/nvidia-sim/hardware >/dev/null && echo seen; exec sleep 1000")
	if got := kubectl(t, "logs", "hardware"); got != "seen\n" {
		t.Errorf("a container says of the hardware: %q", got)
	}
}

// A pod's token names its node: NodeRestriction and the driver's own admission
// policies rest on that.
func TestPodsReachTheAPIWithATokenOfTheirNode(t *testing.T) {
	tree := image.BaseTree().Program("/bin/kubectl", filepath.Join(shared.Programs(), "kubectl"))
	client := image.Image{Name: "aliquot.test/client:latest", Root: tree}
	if err := shared.AddImage(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	runPod(t, "node-2", "client", client.Name, "sleep 1000")
	var review struct {
		Status struct {
			UserInfo struct {
				Username string
				Extra    map[string][]string
			}
		}
	}
	out := kubectl(t, "exec", "client", "--", "kubectl", "auth", "whoami", "--output=json")
	if err := json.Unmarshal([]byte(out), &review); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	user := review.Status.UserInfo
	if user.Username != "system:serviceaccount:default:default" {
		t.Errorf("user %q", user.Username)
	}
	if nodes := user.Extra["authentication.kubernetes.io/node-name"]; len(nodes) != 1 || nodes[0] != "node-2" {
		t.Errorf("token's node %q, want node-2", nodes)
	}
}

func TestContainerdInjectsCDIDevices(t *testing.T) {
	const spec = `{"cdiVersion": "0.6.0", "kind": "example.com/thing", "devices": [
  {"name": "one", "containerEdits": {"env": ["THING=one"],
   "mounts": [{"hostPath": "/etc/hostname", "containerPath": "/thing", "options": ["ro", "bind"]}]}}]}`
	onNode(t, "node-1", "sh", "-c", "mkdir -p /var/run/cdi; echo '"+spec+"' > /var/run/cdi/example.json")
	got := onNode(t, "node-1", "ctr", "--namespace=k8s.io", "run", "--rm", "--device=example.com/thing=one",
		image.BaseName, "cdi-test", "sh", "-c", "echo $THING; cat /thing")
	if want := "one\nnode-1\n"; got != want {
		t.Errorf("the container says %q, want %q", got, want)
	}
}

// The kubelet plugin sees a driver that is installed after it started, and
// leaves mounts on its node.
func TestMountsPropagateBothWays(t *testing.T) {
	onNode(t, "node-1", "mkdir", "-p", "/run/shared/from-node", "/run/shared/from-pod")
	const manifest = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "propagation"}, "spec": {
  "nodeName": "node-1", "terminationGracePeriodSeconds": 0,
  "containers": [{"name": "main", "image": "` + image.BaseName + `", "imagePullPolicy": "Never",
    "command": ["sh", "-c", "mount -t tmpfs pod /both/from-pod && exec sleep 1000"],
    "securityContext": {"privileged": true, "readOnlyRootFilesystem": true},
    "volumeMounts": [{"name": "shared", "mountPath": "/in", "mountPropagation": "HostToContainer", "readOnly": true},
      {"name": "shared", "mountPath": "/both", "mountPropagation": "Bidirectional"}]}],
  "volumes": [{"name": "shared", "hostPath": {"path": "/run/shared"}}]}}`
	if err := shared.Apply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = shared.Kubectl(context.Background(), "delete", "pod", "propagation", "--wait=false") })
	kubectl(t, "wait", "--for=condition=Ready", "pod/propagation", "--timeout=2m")
	onNode(t, "node-1", "mount", "-t", "tmpfs", "node", "/run/shared/from-node")
	kubectl(t, "exec", "propagation", "--", "grep", " /in/from-node ", "/proc/mounts")
	onNode(t, "node-1", "grep", " /run/shared/from-pod ", "/proc/mounts")
}

func TestKubeletStopsAndStarts(t *testing.T) {
	if err := shared.StopKubelet(t.Context(), "node-2"); err != nil {
		t.Fatal(err)
	}
	if got := onNode(t, "node-2", "sh", "-c", "pidof kubelet || echo none"); got != "none\n" {
		t.Errorf("after StopKubelet its pid is %q", got)
	}
	if err := shared.StartKubelet(t.Context(), "node-2"); err != nil {
		t.Fatal(err)
	}
	runPod(t, "node-2", "after-kubelet", image.BaseName, "sleep 1000")
}

func TestNodeReboots(t *testing.T) {
	runPod(t, "node-2", "rebooted", image.BaseName, "sleep 1000")
	onNode(t, "node-2", "sh", "-c", "touch /run/volatile /var/lib/lasting")
	before := kubectl(t, "get", "node", "node-2", "--output=jsonpath={.status.nodeInfo.bootID}")
	if err := shared.StopNode(t.Context(), "node-2"); err != nil {
		t.Fatal(err)
	}
	if _, err := shared.OnNode(t.Context(), "node-2", "true"); err == nil {
		t.Error("a stopped node runs commands")
	}
	if err := shared.StartNode(t.Context(), "node-2"); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "pod/rebooted", "--timeout=2m")
	kubectl(t, "wait", "--for=condition=Ready", "pod/rebooted", "--timeout=2m")
	if after := kubectl(t, "get", "node", "node-2", "--output=jsonpath={.status.nodeInfo.bootID}"); after == before {
		t.Errorf("the boot id is %s before and after", after)
	}
	got := onNode(t, "node-2", "sh", "-c", "ls /run/volatile /var/lib/lasting 2>/dev/null || true")
	if got != "/var/lib/lasting\n" {
		t.Errorf("after the reboot there is %q, want only what was on disk", got)
	}
}
