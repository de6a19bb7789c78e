// Package preflight looks at a node for what keeps pods with GPUs from starting there, and says how to mend it. It mends
// nothing itself, and it leaves nothing behind.
package preflight

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"tags.cncf.io/container-device-interface/specs-go"

	"aliquot.dev/aliquot/internal/gpu"
)

// Hardware is what preflight asks of the node's GPUs.
type Hardware interface {
	// Devices lists the GPUs that answer; skipped says why others are left out.
	Devices() (devices []gpu.Device, skipped []error, err error)
	// Edits are what the NVIDIA driver needs in each container, and for each GPU or partition by its UUID. Files that are
	// missing are left out.
	Edits(uuids []string) (common specs.ContainerEdits, byUUID map[string]specs.ContainerEdits, err error)
	// Remedy says what to do about an error of the two, "" if that is not known.
	Remedy(err error) string
}

// Config is where preflight looks.
type Config struct {
	NodeName     string
	Hardware     Hardware
	Root         string // of the NVIDIA driver on the host
	RootMount    string // where this process sees Root
	DataDir      string // the plugin's directory below the kubelet's
	RegistrarDir string // where the kubelet looks for plugins
	CDIDir       string // where the plugin writes CDI specs
	RunDir       string // where the files of shares are
	Proc         string // "/proc"
	Cgroup       string // "/sys/fs/cgroup"
	// Client asks the API server. nil: it is not asked, and NoClient says why.
	Client   kubernetes.Interface
	NoClient error
	// Serves says why the plugin does not answer at the socket that the kubelet registers it by.
	Serves func(ctx context.Context, socket string) error
	// DevicePlugin names the resources by which a device plugin gives out the node's GPUs, "" if there are none.
	DevicePlugin func(*corev1.Node) string
	// BesideDevicePlugin: that is meant to be.
	BesideDevicePlugin bool

	fileSystem func(path string) (unix.Statfs_t, error) // nil: the kernel is asked
}

// Run makes all checks, in the order in which one would mend what they find.
func Run(ctx context.Context, c Config) Report {
	report := Report{Node: c.NodeName}
	gpus, findings := c.hardware()
	report.add(findings...)
	report.add(c.installed()...)
	report.add(c.directories()...)
	report.add(c.specs()...)
	report.add(c.cgroups())
	report.add(c.sockets(ctx)...)
	report.add(c.cluster(ctx, gpus)...)
	return report
}

// Level is how much a finding matters.
type Level string

// Levels. Warn: pods start, but something is not as it should be, or could not be seen. Fail: some or all do not start.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Finding is what one check found.
type Finding struct {
	Check  string `json:"check"`
	Level  Level  `json:"level"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"` // unless Level is OK
}

func ok(check, format string, args ...any) Finding {
	return Finding{Check: check, Level: OK, Found: line(fmt.Sprintf(format, args...))}
}

func warn(check, remedy, format string, args ...any) Finding {
	return Finding{Check: check, Level: Warn, Found: line(fmt.Sprintf(format, args...)), Remedy: line(remedy)}
}

func fail(check, remedy, format string, args ...any) Finding {
	return Finding{Check: check, Level: Fail, Found: line(fmt.Sprintf(format, args...)), Remedy: line(remedy)}
}

// line makes one line of text, since joined errors have several.
func line(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
