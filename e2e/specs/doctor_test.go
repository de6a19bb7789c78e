//go:build e2e

package specs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aliquot.dev/aliquot/e2e/release"
	"aliquot.dev/aliquot/e2e/scenario"
	"aliquot.dev/aliquot/e2e/simdriver"
)

// A claim has two specs: one is the library's, of what it tells containers of their devices.
func TestDoctorFindsNothingOnAHealthyNode(t *testing.T) {
	s := begin(t, sharing)
	s.pluginReady()
	s.offers(8)
	s.start("healthy", s.share("1Gi"), cuda("main"))
	s.held("healthy", "1Gi")
	s.diagnosed(`
ok NVIDIA driver version 580.95.05, CUDA 13.0
ok GPUs 8 x NVIDIA H100 80GB HBM3
ok driver files /run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05 and 3 more
ok device nodes nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia0, nvidia1, nvidia2, nvidia3, nvidia4, nvidia5, nvidia6, nvidia7
ok preload library /var/lib/kubelet/plugins/gpu.aliquot.dev/lib/<version>/libaliquot.so
ok CDI hook /var/lib/kubelet/plugins/gpu.aliquot.dev/bin/<version>/nvidia-cdi-hook
ok data directory /var/lib/kubelet/plugins/gpu.aliquot.dev is writable
ok run directory /run/aliquot is writable
ok registrar /var/lib/kubelet/plugins_registry is writable
ok CDI directory /var/run/cdi is writable
ok CDI specs 2 in /var/run/cdi, and all can be read
ok plugin answers at /var/lib/kubelet/plugins_registry/gpu.aliquot.dev-reg.sock
ok API server Kubernetes v1.37.2
ok kubelet v1.37.2
ok container runtime containerd 2.4.2+unknown, with CDI on
ok device plugin none offers GPUs of this node
ok ResourceSlices 9 with 208 devices, as they were published
`)
	s.stillHeld("healthy", "1Gi")
}

func TestDoctorNamesWhatIsBroken(t *testing.T) {
	s := begin(t, faulty)
	s.pluginReady()
	s.spoil("cd "+scenario.DriverRoot+"/dev && mkdir away && mv nvidia-uvm-tools away", "cd "+scenario.DriverRoot+"/dev && mv away/* . && rmdir away")
	s.spoil("echo '{' > "+scenario.SpecsDir+"/vendor.json", "rm "+scenario.SpecsDir+"/vendor.json")
	s.spoil("cd "+scenario.PluginData+"/bin/* && cp -p nvidia-cdi-hook ../../kept-hook && echo >> nvidia-cdi-hook", "cd "+scenario.PluginData+"/bin/* && mv ../../kept-hook nvidia-cdi-hook")

	s.diagnosed(`
FAIL device nodes /dev/nvidia-uvm-tools is missing under /run/nvidia/driver
-> run ''nvidia-modprobe -u -c 0'' as root on the node, in the driver container if there is one
FAIL CDI hook /var/lib/kubelet/plugins/gpu.aliquot.dev/bin/<version>/nvidia-cdi-hook is damaged: the SHA-256 of its content begins with <version>
-> delete it and restart the plugin's pod, which installs it again
warn CDI specs failed to parse CDI Spec "/var/run/cdi/vendor.json": failed to unmarshal CDI Spec: yaml: line 1: did not find expected node content
-> repair or delete the file; what wrote it can tell which. Pods that use its devices do not start, those with shares do
`)
	s.replacePlugin()
	s.pluginReady()
	s.nodeTold("PreflightFailed", "device nodes: /dev/nvidia-uvm-tools is missing", "To mend it: run `nvidia-modprobe")
	s.nodeTold("PreflightFailed", "CDI hook: ", "is damaged", "To mend it: delete it")
	s.nodeTold("PreflightWarning", "CDI specs: ", "vendor.json", "To mend it: repair or delete the file")

	s.fault(simdriver.FailCall("nvmlInit_v2", driverNotLoaded))
	s.eventually("doctor tells of NVML", func(context.Context) (bool, error) {
		lines, failed := s.doctor()
		return failed && slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "FAIL NVIDIA driver initialise NVML: ") }) &&
			slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "-> load the kernel module (modprobe nvidia)") }), nil
	})
}

// spoil breaks something on the node, and mends it when the spec ends.
func (s *spec) spoil(command, mend string) {
	s.Helper()
	s.onNode("%s", command)
	s.Cleanup(func() {
		if output, err := s.OnNode(context.Background(), s.node, "sh", "-c", mend); err != nil {
			s.Errorf("mend the node: %v %s", err, output)
		}
	})
}

// version is what files are named by that change with each build; of is the plugin's pod, which may name its sockets.
var (
	version = regexp.MustCompile(`\b[0-9a-f]{16}\b`)
	of      = regexp.MustCompile(`-[0-9a-f]{8}-[0-9a-f-]{27}-reg`)
)

// diagnosed checks what doctor prints in the plugin's container: all of it, or only what is not ok if just that is wanted. What depends on the
// machine is left out.
func (s *spec) diagnosed(want string) {
	s.Helper()
	want = strings.ReplaceAll(strings.TrimSpace(want), "''", "`")
	lines, failed := s.doctor()
	if healthy := strings.HasPrefix(want, "ok"); healthy == failed {
		s.Errorf("doctor failed: %v", failed)
	} else if !healthy {
		lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "ok") })
	}
	if diff := cmp.Diff(strings.Split(want, "\n"), lines); diff != "" {
		s.Errorf("doctor says (-want +got):\n%s", diff)
	}
}

// doctor runs doctor in the plugin's container, in both of its forms, and returns the lines that it prints, without
// those on cgroups, which are the machine's. failed is its exit status.
func (s *spec) doctor() (lines []string, failed bool) {
	s.Helper()
	text, failed := s.runDoctor()
	cgroups := false
	for line := range strings.Lines(text) {
		line = of.ReplaceAllString(version.ReplaceAllString(line, "<version>"), "-reg")
		line = strings.Join(strings.Fields(line), " ")
		if isRemedy := strings.HasPrefix(line, "-> "); !isRemedy {
			cgroups = strings.HasPrefix(line, "ok cgroups ") || strings.HasPrefix(line, "warn cgroups ")
		}
		if !cgroups {
			lines = append(lines, line)
		}
	}
	program, failedToo := s.runDoctor("--output", "json")
	var report struct {
		Node     string
		Findings []struct{ Check, Level, Found, Remedy string }
	}
	if err := json.Unmarshal([]byte(program), &report); err != nil || report.Node != s.node || failed != failedToo || len(report.Findings) < 10 {
		s.Errorf("doctor --output json printed (%v): %s", err, program)
	}
	return lines, failed
}

func (s *spec) runDoctor(args ...string) (stdout string, failed bool) {
	s.Helper()
	plugin, err := s.Plugin(s.Context(), s.node)
	s.must(err)
	cmd := s.Command(s.Context(), "kubectl", append([]string{"exec", "--namespace", release.Namespace, plugin.Name, "--", "aliquot-kubelet-plugin", "doctor"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && strings.Contains(stderr.String(), "checks failed") {
		return string(output), true
	}
	if err != nil {
		s.Fatal(fmt.Errorf("run doctor: %w: %s", err, stderr.String()))
	}
	return string(output), false
}
