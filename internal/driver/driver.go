// Package driver is what Aliquot does on a node: it publishes the node's GPUs, prepares and unprepares claims, and mends
// after a restart what a crash left half done. It holds no knowledge of hardware or of the container runtime of its own:
// both are handed to it.
package driver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"aliquot.dev/aliquot/cdi"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/quota"
	"aliquot.dev/aliquot/internal/usage"
)

// Hardware is where the driver learns of the node's GPUs.
type Hardware interface {
	// Devices lists the GPUs that answer; skipped says why others are left out.
	Devices() (devices []gpu.Device, skipped []error, err error)
	// Edits are what the NVIDIA driver needs in each container, and for each GPU or partition by its UUID. A partition of
	// which that cannot be found is left out.
	Edits(uuids []string) (common specs.ContainerEdits, byUUID map[string]specs.ContainerEdits, err error)
}

// Partitioner divides GPUs.
type Partitioner interface {
	// FindPartition looks for one at an exact place. It has no UUID if it is half made or divided further.
	FindPartition(uuid, profile string, place gpu.Placement) (gpu.Partition, bool, error)
	// CreatePartition makes one, in MIG mode, which it turns on if that takes no reset. One that is there is completed.
	// When it fails, all is as it was.
	CreatePartition(uuid, profile string, place gpu.Placement) (gpu.Partition, error)
	// DestroyPartition removes one. One that is not there is no error.
	DestroyPartition(uuid, profile string, place gpu.Placement) error
	// SetMIGMode turns MIG mode on or off where that takes no reset.
	SetMIGMode(uuid string, enable bool) error
}

// Config is what New needs.
type Config struct {
	NodeName string
	// PodUID is that of the plugin's pod. It lets a plugin that takes over serve the kubelet beside the one before; empty: there
	// is never a second one.
	PodUID       types.UID
	DataDir      string // the plugin's directory below the kubelet's, "/var/lib/kubelet/plugins/gpu.aliquot.dev"
	RegistrarDir string // where the kubelet looks for plugins, "/var/lib/kubelet/plugins_registry"
	Layout       cdi.Layout
	Hardware     Hardware
	Partitioner  Partitioner
	Client       kubernetes.Interface
	Events       events.EventRecorder
	// DiscoveryInterval is how often GPUs are looked for and claims reconciled; 0 is a minute. After a failure it is done
	// again in 10 seconds, if that is sooner.
	DiscoveryInterval time.Duration
	// Processes is where the driver learns what shares really use; nil: they are not measured.
	Processes usage.Hardware
	// Watcher is where the driver learns what happens to GPUs; nil: it only sees how they are at each discovery.
	Watcher Watcher
	// Taints are the effects of the taint of an unhealthy GPU, by the severity of what it has; NoSchedule where there is none.
	Taints map[gpu.Severity]resourceapi.DeviceTaintEffect
	// BesideDevicePlugin publishes the GPUs of a node on which a device plugin offers GPUs too.
	BesideDevicePlugin bool
	// Traces is where the driver tells what its work takes time for; nil: nowhere.
	Traces trace.TracerProvider
	// ContextMiB is what a process's first context on a GPU is charged until it was measured; 0 charges none.
	ContextMiB uint32
}

// Driver serves the kubelet of one node.
type Driver struct {
	config   Config
	records  records
	marks    marks
	store    *cdi.Store
	metrics  *metrics
	tracer   trace.Tracer
	health   *health
	cards    cards // who has one of its locks may wait for mu, not the other way round
	turn     turn
	known    atomic.Bool                          // the kubelet has registered the plugin
	standby  atomic.Bool                          // another process does what only one may do
	replaces atomic.Bool                          // waits for a plugin that knows nothing of others
	usage    *usage.Loop                          // nil: shares are not measured
	helper   atomic.Pointer[kubeletplugin.Helper] // nil until the kubelet is served
	fatal    context.CancelCauseFunc

	calls sync.RWMutex // locked for reading by each call of the kubelet while it is handled

	mu     sync.Mutex // guards what follows: prepares, discovery and reconciliation exclude each other
	shared *shared    // has other processes excluded too
	ledger *quota.Ledger
	booked map[types.UID]record // what the ledger holds
	node   node
	// followed are the shares that are measured, as they were told when changes was followedAt.
	followed   []usage.Share
	followedAt int
	// changes counts the partitions made and removed, so that a discovery that was under way is known to be stale.
	changes   int
	ours      map[slot]bool                  // the slots that are marked
	untidy    bool                           // there may be partitions of nobody
	published *resourceslice.DriverResources // nil until something was
	slices    *resourceslice.Controller      // only Start uses it; nil while nothing is published
	lost      map[string]loss                // by UID, claims that are here by their files and have no record that could be read

	reconfiguring atomic.Bool            // an administrator is changing the node's partitions
	wake          chan struct{}          // asks Start for a discovery at once
	neighbour     atomic.Pointer[string] // what a device plugin offers of this node; nil until the node was seen
	again         chan struct{}          // asks Start to publish what it published before
	scheduler     atomic.Pointer[string] // the version of a Kubernetes that mixes shares and partitions up, or ""; nil: not known yet

	ready atomic.Pointer[error] // why the driver is not ready; points to nil when it is
}

var _ kubeletplugin.DRAPlugin = (*Driver)(nil)

// New returns a driver that touches nothing until Start.
func New(config Config) (*Driver, error) {
	store, err := cdi.NewStore(config.Layout)
	if err != nil {
		return nil, err
	}
	if config.DiscoveryInterval == 0 {
		config.DiscoveryInterval = time.Minute
	}
	common := &shared{flock: flock{path: filepath.Join(config.DataDir, "state.lock")}}
	d := &Driver{
		config:  config,
		records: records{filepath.Join(config.DataDir, "claims"), common.countBooks},
		marks:   newMarks(filepath.Join(config.DataDir, "partitions"), common.countBooks),
		health:  newHealth(filepath.Join(config.DataDir, "health.json"), config.DiscoveryInterval),
		turn:    newTurn(config.DataDir),
		shared:  common,
		ours:    map[slot]bool{},
		cards:   cards{dir: filepath.Join(config.DataDir, "gpus")},
		store:   store,
		tracer:  newTracer(config.Traces),
		fatal:   func(error) {},
		ledger:  quota.NewLedger(),
		booked:  map[types.UID]record{},
		lost:    map[string]loss{},
		wake:    make(chan struct{}, 1),
		again:   make(chan struct{}, 1),
	}
	d.metrics = newMetrics(d)
	if config.Processes != nil {
		d.usage = usage.New(usage.Config{
			Hardware: config.Processes,
			Degraded: func(note string) { d.warnNode("LimiterDegraded", "Measure", "%s", note) },
		})
	}
	d.setReady(errors.New("starting"))
	return d, nil
}

// Start mends what an earlier run left, registers with the kubelet and keeps the published GPUs true until ctx ends or
// an error makes that impossible, which it returns. Calls of the kubelet that are under way are finished first.
func (d *Driver) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.fatal = cancel
	err := d.start(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (d *Driver) start(ctx context.Context) error {
	if err := d.awaitUnaware(ctx); err != nil {
		return err
	}
	first, err := d.turn.try()
	if err != nil {
		return err
	}
	defer d.turn.yield()
	d.standby.Store(!first)
	if err := d.loadRecords(); err != nil {
		return err
	}
	if err := d.health.load(); err != nil {
		d.reportUnkept(ctx, err)
	}
	found := d.discover(ctx)
	d.reconcile(ctx)
	if err := d.serve(ctx); err != nil {
		return err
	}
	defer d.stopServing()
	if first {
		d.lead(ctx, found)
	}
	for ctx.Err() == nil {
		if err := d.takeOver(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Ready says why the driver cannot serve, nil if it can.
func (d *Driver) Ready() error {
	if d.replaces.Load() {
		return nil // or nobody would end the one that is waited for
	}
	if err := *d.ready.Load(); err != nil {
		return err
	}
	if d.helper.Load() == nil {
		return errors.New("starting")
	}
	if !d.known.Load() {
		return errors.New("the kubelet has not registered the plugin")
	}
	return d.conflict()
}

func (d *Driver) setReady(err error) {
	d.ready.Store(&err)
}

// HandleError takes what goes wrong in the background, mostly while publishing. What a retry can mend is told; anything
// else ends Start.
func (d *Driver) HandleError(ctx context.Context, err error, msg string) {
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.publishFailed(ctx, err, msg)
		return
	}
	klog.FromContext(ctx).Error(err, msg)
	d.fatal(fmt.Errorf("%s: %w", msg, err))
}

// publishFailed tells of what a retry can mend.
func (d *Driver) publishFailed(ctx context.Context, err error, msg string) {
	if ctx.Err() != nil {
		return // another process is about to publish, or this one ends
	}
	klog.FromContext(ctx).Error(err, msg)
	d.metrics.publish.Inc()
	d.warnNode("PublishFailed", "Publish", "%s: %v", msg, err)
}

// noteLimit is the length in bytes beyond which the API server refuses an Event.
const noteLimit = 1024

// WarnNode tells the admin, for others who look at the node, through an Event on it.
func (d *Driver) WarnNode(reason, action, note string) {
	d.warnNode(reason, action, "%s", note)
}

// warnNode tells the admin through an Event on the node. The recorder makes one of Events that differ in no more than
// their note, and keeps the first note: a second GPU that is lost would not be named. A related object that stands for
// the note keeps them apart.
func (d *Driver) warnNode(reason, action, format string, args ...any) {
	d.tellNode(corev1.EventTypeWarning, reason, action, format, args...)
}

func (d *Driver) tellNode(kind, reason, action, format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	if len(note) > noteLimit {
		note = strings.ToValidUTF8(note[:noteLimit], "")
	}
	// The UID is the name, as in the kubelet's Events: `kubectl describe node` looks for that.
	node := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: d.config.NodeName, UID: types.UID(d.config.NodeName)}
	related := node
	related.FieldPath = fmt.Sprintf("%x", sha256.Sum256([]byte(note)))[:16]
	d.config.Events.Eventf(&node, &related, kind, reason, action, "%s", note)
}
