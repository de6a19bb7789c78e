package simdriver

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// MaxGPUs is how many cards one description may have.
const MaxGPUs = 16

// Hardware is a machine as the driver sees it.
type Hardware struct {
	DriverVersion string `json:"driverVersion"`
	NVMLVersion   string `json:"nvmlVersion"`
	// CUDAVersion is "13.0": what cuDriverGetVersion answers.
	CUDAVersion string `json:"cudaVersion"`
	GPUs        []GPU  `json:"gpus"`
}

// GPU is one card. What a description leaves out is taken from its model.
type GPU struct {
	// Model is a key of models.yaml.
	Model  string `json:"model,omitempty"`
	Name   string `json:"name"`
	UUID   string `json:"uuid"`
	Serial string `json:"serial,omitempty"`
	// Minor is the number of its device node; default: its place in the list.
	Minor             *int   `json:"minor,omitempty"`
	PCI               PCI    `json:"pci"`
	Memory            Memory `json:"memory"`
	ComputeCapability string `json:"computeCapability"`
	Architecture      string `json:"architecture"`
	Brand             string `json:"brand"`
	Multiprocessors   int    `json:"multiprocessors"`
	Cores             int    `json:"cores"`
	// MIGDevices is how many MIG devices it can hold; 0: not MIG capable.
	MIGDevices int `json:"migDevices,omitempty"`
	// MIGProfiles are the sizes of partition that it can have, of mig.yaml.
	MIGProfiles []MIGProfile `json:"migProfiles,omitempty"`
	// MIG is how it is divided when the root is made.
	MIG            *MIGStart      `json:"mig,omitempty"`
	Virtualization Virtualization `json:"virtualization,omitempty"`
	// ContextMiB is what one context costs, 0 unless a test wants it.
	ContextMiB int `json:"contextMiB,omitempty"`
	// TimeSliceMicroseconds is how long a process has the card before it is
	// another's turn; 0: 2000.
	TimeSliceMicroseconds int `json:"timeSliceMicroseconds,omitempty"`
}

// PCI is where a card sits.
type PCI struct {
	// BusID is in NVML's long form, 00000000:0F:00.0.
	BusID       string `json:"busID"`
	DeviceID    uint32 `json:"deviceID"`
	SubsystemID uint32 `json:"subsystemID,omitempty"`
	// Root is the PCIe root complex ("pci0000:0e"); a VM may know none.
	Root string `json:"root,omitempty"`
	// NUMANode is -1 where the machine does not say.
	NUMANode *int `json:"numaNode,omitempty"`
}

// Memory is in bytes. A program may have Total - Reserved, in 2 MiB blocks.
type Memory struct {
	Total    uint64 `json:"total"`
	Reserved uint64 `json:"reserved"`
}

// Virtualization is how the card came to the machine.
type Virtualization string

// The ways a card can come to a machine.
const (
	BareMetal   Virtualization = ""
	Passthrough Virtualization = "passthrough"
	VGPU        Virtualization = "vgpu"
)

//go:embed descriptions/*.yaml
var descriptions embed.FS

//go:embed models.yaml
var modelsYAML []byte

//go:embed mig.yaml
var migYAML []byte

// models holds what is the same for all cards of a kind.
var models = func() map[string]GPU {
	models, profiles := map[string]GPU{}, map[string][]MIGProfile{}
	err := errors.Join(yaml.UnmarshalStrict(modelsYAML, &models), yaml.UnmarshalStrict(migYAML, &profiles))
	if err != nil {
		panic(err) // embedded, and read by every test
	}
	for name, gpu := range models {
		gpu.MIGProfiles = profiles[name]
		models[name] = gpu
	}
	return models
}()

// Names lists the descriptions that Load knows.
func Names() []string {
	entries, err := descriptions.ReadDir("descriptions")
	if err != nil {
		panic(err) // embedded: cannot be missing
	}
	var names []string
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), ".yaml"))
	}
	return names
}

// Load gives one of the descriptions that come with the package.
func Load(name string) (Hardware, error) {
	data, err := descriptions.ReadFile(path.Join("descriptions", name+".yaml"))
	if err != nil {
		return Hardware{}, fmt.Errorf("hardware description %q: not one of %v", name, Names())
	}
	hw, err := Parse(data)
	if err != nil {
		return Hardware{}, fmt.Errorf("hardware description %q: %w", name, err)
	}
	return hw, nil
}

// Parse reads a description and reports everything that is wrong with it.
func Parse(data []byte) (Hardware, error) {
	var hw Hardware
	if err := yaml.UnmarshalStrict(data, &hw); err != nil {
		return Hardware{}, err
	}
	for i := range hw.GPUs {
		if hw.GPUs[i].Minor == nil {
			hw.GPUs[i].Minor = &i
		}
	}
	if err := hw.Validate(); err != nil {
		return Hardware{}, err
	}
	return hw, nil
}

// UnmarshalJSON lays what the description says over what the model says.
func (g *GPU) UnmarshalJSON(data []byte) error {
	type plain GPU // without this method
	var named struct {
		Model string `json:"model"`
	}
	if err := json.Unmarshal(data, &named); err != nil {
		return err
	}
	if named.Model != "" {
		model, ok := models[named.Model]
		if !ok {
			return fmt.Errorf("model %q: not one of %v", named.Model, slices.Sorted(maps.Keys(models)))
		}
		*g = model
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode((*plain)(g))
}

var (
	cudaVersionForm = regexp.MustCompile(`^\d+\.\d$`)
	uuidForm        = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	busIDForm       = regexp.MustCompile(`^[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0$`)
	rootForm        = regexp.MustCompile(`^pci[0-9a-f]{4}:[0-9a-f]{2}$`)
	capabilityForm  = regexp.MustCompile(`^\d+\.\d$`)
)

// Validate reports everything that is wrong with a description.
func (hw Hardware) Validate() error {
	var errs []error
	if hw.DriverVersion == "" || hw.NVMLVersion == "" {
		errs = append(errs, errors.New("driverVersion and nvmlVersion are required"))
	}
	if !cudaVersionForm.MatchString(hw.CUDAVersion) {
		errs = append(errs, fmt.Errorf("cudaVersion %q is not like 13.0", hw.CUDAVersion))
	}
	if n := len(hw.GPUs); n > MaxGPUs {
		errs = append(errs, fmt.Errorf("%d gpus are more than %d", n, MaxGPUs))
	}
	taken := map[string]int{}
	for i, gpu := range hw.GPUs {
		for _, err := range gpu.problems() {
			errs = append(errs, fmt.Errorf("gpus[%d]: %w", i, err))
		}
		for _, key := range []string{gpu.UUID, gpu.PCI.BusID, fmt.Sprintf("minor %d", *gpu.Minor)} {
			if other, ok := taken[key]; ok {
				errs = append(errs, fmt.Errorf("gpus[%d]: %s is taken by gpus[%d]", i, key, other))
			}
			taken[key] = i
		}
	}
	return errors.Join(errs...)
}

func (g GPU) problems() []error {
	var errs []error
	check := func(good bool, format string, args ...any) {
		if !good {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(g.Name != "" && len(g.Name) < 96, "name %q is empty or long", g.Name)
	check(uuidForm.MatchString(g.UUID), "uuid %q is not like GPU-<uuid>", g.UUID)
	check(len(g.Serial) < 30, "serial %q is long", g.Serial)
	check(*g.Minor >= 0 && *g.Minor < 255, "minor %d is out of range", *g.Minor)
	check(busIDForm.MatchString(g.PCI.BusID), "pci.busID %q is not like 00000000:0F:00.0", g.PCI.BusID)
	check(g.PCI.Root == "" || rootForm.MatchString(g.PCI.Root), "pci.root %q is not like pci0000:0e", g.PCI.Root)
	check(g.Memory.Total > g.Memory.Reserved, "memory.total %d does not exceed memory.reserved %d", g.Memory.Total, g.Memory.Reserved)
	check(capabilityForm.MatchString(g.ComputeCapability), "computeCapability %q is not like 9.0", g.ComputeCapability)
	check(architectures[g.Architecture] != 0, "architecture %q is unknown", g.Architecture)
	check(brands[g.Brand] != 0, "brand %q is unknown", g.Brand)
	check(g.Multiprocessors > 0 && g.Cores > 0, "multiprocessors and cores are required")
	check(g.MIGDevices >= 0 && g.ContextMiB >= 0, "migDevices and contextMiB cannot be negative")
	errs = append(errs, g.migProblems()...)
	check(g.TimeSliceMicroseconds >= 0, "timeSliceMicroseconds %d is negative", g.TimeSliceMicroseconds)
	_, known := virtualizations[g.Virtualization]
	check(known, "virtualization %q is unknown", g.Virtualization)
	return errs
}
