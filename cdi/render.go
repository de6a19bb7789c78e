// Package cdi says what a share looks like inside a container: it renders the CDI spec of one claim, and writes, lists
// and removes specs and the files that a share mounts. It does not know claims, slices or hardware; what the GPU's own
// driver needs in a container is handed to it as CDI edits.
package cdi

import (
	"fmt"
	"regexp"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"
)

const (
	vendor = "gpu.aliquot.dev"
	class  = "share"
	// Kind is the CDI kind of all devices rendered here.
	Kind = vendor + "/" + class
)

// ContainerLibrary is where a container has the preload library.
const ContainerLibrary = "/run/aliquot/lib/libaliquot.so"

// Where a share's files lie inside a container. The preload library is compiled with containerShares.
const (
	containerShares      = "/run/aliquot/shares"
	containerPreloadList = "/etc/ld.so.preload"
)

// Claim is one claim's allocation as its containers will see it.
type Claim struct {
	UID     string               // the claim's UID
	Common  specs.ContainerEdits // what every container with a GPU needs: control nodes, driver libraries, hooks
	Devices []Device             // at least one
}

// Device is one allocation result of a claim.
type Device struct {
	Request string               // the request's name, "name" or "name/subrequest"
	ID      string               // tells results of one request apart: the shareID, or the device's name if it has none
	Edits   specs.ContainerEdits // what the GPU needs in a container: its device nodes and hooks
	Quota   *Quota               // nil for a whole GPU, which is not limited
}

// Quota is what the preload library holds a share to.
type Quota struct {
	GPU         string // UUID of the GPU or partition
	MemoryBytes uint64
	CorePercent int
	CorePolicy  string
	Priority    int

	// What the agent page says until the agent's first measurement.
	ContextMiB   uint32 // what a process's first context is charged
	CorePermille uint32 // of the GPU's time now; 0: as CorePercent says
}

// Layout is where things lie on the node. All paths are the host's.
type Layout struct {
	SpecDir     string // where the container runtime looks for CDI specs, "/var/run/cdi"
	SharesDir   string // one directory a claim, on tmpfs: a reboot ends the processes that the files describe
	Library     string // the preload library; its name carries its version, so that it is never rewritten in place
	PreloadList string // the file that becomes /etc/ld.so.preload
}

// DeviceName is the unqualified CDI name of a claim's device. It holds all that tells two results apart: two requests of
// one claim may be on one GPU, and a name must not be used again for something else while a runtime caches it.
func DeviceName(claimUID string, d Device) string {
	return claimUID + "_" + strings.ReplaceAll(d.Request, "/", ".") + "_" + d.ID
}

// QualifiedName is the CDI device ID that a container runtime resolves.
func QualifiedName(claimUID string, d Device) string {
	return parser.QualifiedName(vendor, class, DeviceName(claimUID, d))
}

// Render makes the spec of a claim. Nothing that one share injects has a key in common with another share, except files
// that are the same for all: a container may hold several claims and each must hold.
func Render(claim Claim, layout Layout) (*specs.Spec, error) {
	if err := claim.Validate(); err != nil {
		return nil, err
	}
	spec := &specs.Spec{Kind: Kind, ContainerEdits: claim.Common}
	for _, d := range claim.Devices {
		edits := d.Edits
		if d.Quota != nil {
			edits.Env = append(edits.Env[:len(edits.Env):len(edits.Env)], shareEnv(d))
			edits.Mounts = append(edits.Mounts[:len(edits.Mounts):len(edits.Mounts)], shareMounts(claim.UID, d, layout)...)
		}
		spec.Devices = append(spec.Devices, specs.Device{Name: DeviceName(claim.UID, d), ContainerEdits: edits})
	}
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, fmt.Errorf("find the CDI version for claim %s: %w", claim.UID, err)
	}
	spec.Version = version
	return spec, nil
}

// shareEnv tells people and programs what they got. Nothing is enforced by it.
func shareEnv(d Device) string {
	return fmt.Sprintf("ALIQUOT_SHARE_%.8s=%s,memory=%d,cores=%d", d.ID, d.Quota.GPU, d.Quota.MemoryBytes, d.Quota.CorePercent)
}

func shareMounts(claimUID string, d Device, layout Layout) []*specs.Mount {
	host, inside := layout.ShareDir(claimUID, d), containerShares+"/"+shareName(d)
	readOnly := []string{"ro", "nosuid", "nodev", "bind"}
	return []*specs.Mount{
		{HostPath: layout.Library, ContainerPath: ContainerLibrary, Options: readOnly},
		{HostPath: layout.PreloadList, ContainerPath: containerPreloadList, Options: readOnly},
		{HostPath: host + "/" + quotaFile, ContainerPath: inside + "/" + quotaFile, Options: readOnly},
		{HostPath: host + "/" + agentFile, ContainerPath: inside + "/" + agentFile, Options: readOnly},
		{HostPath: host + "/" + usageFile, ContainerPath: inside + "/" + usageFile, Options: []string{"rw", "nosuid", "nodev", "noexec", "bind"}},
	}
}

// shareName is the name of a share's directory, on the host and in the container.
func shareName(d Device) string {
	return d.Quota.GPU + "." + d.ID
}

func (l Layout) claimDir(claimUID string) string {
	return l.SharesDir + "/" + claimUID
}

// ShareDir is where a claim's share has its files on the host. The device must be a share of a valid claim.
func (l Layout) ShareDir(claimUID string, d Device) string {
	return l.claimDir(claimUID) + "/" + shareName(d)
}

// safeName is what may become part of a path, an env key or a CDI device name. Two of them joined are still a file name.
var safeName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$`)

// Validate refuses names that could lead out of a directory or mean two things, whoever wrote them into the API.
func (c Claim) Validate() error {
	if !safeName.MatchString(c.UID) {
		return fmt.Errorf("claim UID %q is not a name", c.UID)
	}
	if len(c.Devices) == 0 {
		return fmt.Errorf("claim %s has no device", c.UID)
	}
	taken := map[string]bool{}
	for _, d := range c.Devices {
		if err := d.validate(); err != nil {
			return fmt.Errorf("claim %s: %w", c.UID, err)
		}
		keys := []string{DeviceName(c.UID, d)}
		if d.Quota != nil {
			keys = append(keys, shareName(d))
		}
		for _, key := range keys {
			if taken[key] {
				return fmt.Errorf("claim %s: two devices are named %s", c.UID, key)
			}
			taken[key] = true
		}
	}
	return nil
}

func (d Device) validate() error {
	for _, part := range strings.SplitN(d.Request, "/", 2) {
		if !safeName.MatchString(part) {
			return fmt.Errorf("request %q is not a name", d.Request)
		}
	}
	if !safeName.MatchString(d.ID) {
		return fmt.Errorf("shareID %q is not a name", d.ID)
	}
	if d.Quota == nil {
		return nil
	}
	if !safeName.MatchString(d.Quota.GPU) {
		return fmt.Errorf("GPU UUID %q is not a name", d.Quota.GPU)
	}
	if !safeName.MatchString(d.Quota.CorePolicy) {
		return fmt.Errorf("core policy %q is not a name", d.Quota.CorePolicy)
	}
	return nil
}
