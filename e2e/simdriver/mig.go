package simdriver

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MIGProfile is one size of partition that a card can have.
type MIGProfile struct {
	// Name is "1g.10gb+me", as go-nvlib makes it of the numbers.
	Name string `json:"name"`
	// Index is one of nvml.GPU_INSTANCE_PROFILE_*, ID what NVML and nvidia-smi
	// call the profile's ID.
	Index     int `json:"index"`
	ID        int `json:"id"`
	Slices    int `json:"slices"`
	Instances int `json:"instances"` // at most, on one card
	// MemoryMiB is what a program in it sees.
	MemoryMiB       uint64 `json:"memoryMiB"`
	Multiprocessors int    `json:"multiprocessors"`
	CopyEngines     int    `json:"copyEngines"`
	Decoders        int    `json:"decoders,omitempty"`
	Encoders        int    `json:"encoders,omitempty"`
	JPEG            int    `json:"jpeg,omitempty"`
	OFA             int    `json:"ofa,omitempty"`
	P2P             bool   `json:"p2p,omitempty"`
	Graphics        bool   `json:"graphics,omitempty"`
	// Size is in memory slices, of which Starts are those at which it may begin.
	Size   int   `json:"size"`
	Starts []int `json:"starts"`
}

// MIGStart is how a card is divided at first.
type MIGStart struct {
	Enabled   bool       `json:"enabled"`
	Instances []MIGPlace `json:"instances,omitempty"`
}

// MIGPlace is where an instance is, with a compute instance of all of it.
type MIGPlace struct {
	Profile string `json:"profile"`
	Start   int    `json:"start"`
}

// flat is read by native/hardware.c.
func (p MIGProfile) flat() string {
	number := map[bool]int{true: 1}
	starts := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(p.Starts)), ","), "[]")
	return fmt.Sprint(p.Name, " ", strings.Trim(fmt.Sprint([]any{
		p.Index, p.ID, p.Slices, p.Instances, p.MemoryMiB, p.Multiprocessors, p.CopyEngines, p.Decoders,
		p.Encoders, p.JPEG, p.OFA, number[p.P2P], number[p.Graphics], p.Size,
	}), "[]"), " ", starts)
}

func (g GPU) profile(name string) (MIGProfile, bool) {
	i := slices.IndexFunc(g.MIGProfiles, func(p MIGProfile) bool { return p.Name == name })
	if i < 0 {
		return MIGProfile{}, false
	}
	return g.MIGProfiles[i], true
}

func (g GPU) migProblems() []error {
	var errs []error
	for i, p := range g.MIGProfiles {
		if p.Name == "" || strings.ContainsAny(p.Name, " \n") || len(p.Name) > 31 || p.Size < 1 || p.Slices < 1 ||
			len(p.Starts) == 0 || len(p.Starts) > 8 || p.Index < 0 || p.Index > 17 {
			errs = append(errs, fmt.Errorf("migProfiles[%d]: %+v is no profile", i, p))
		}
	}
	if g.MIG == nil {
		return errs
	}
	if len(g.MIGProfiles) == 0 || (len(g.MIG.Instances) > 0 && !g.MIG.Enabled) {
		errs = append(errs, errors.New("mig: the card cannot be divided, or is not enabled"))
	}
	for i, place := range g.MIG.Instances {
		if p, ok := g.profile(place.Profile); !ok || !slices.Contains(p.Starts, place.Start) {
			errs = append(errs, fmt.Errorf("mig.instances[%d]: %+v is not to be had", i, place))
		}
	}
	return errs
}

// MIGCard is how one card is divided, in the description's order.
type MIGCard struct {
	UUID string `json:"uuid"`
	// Enabled is the mode that holds, Pending that after the next reset.
	Enabled   bool          `json:"enabled"`
	Pending   bool          `json:"pending"`
	Instances []MIGInstance `json:"instances"`
}

// MIGInstance is a GPU instance.
type MIGInstance struct {
	ID       int          `json:"id"`
	Profile  string       `json:"profile"`
	Start    int          `json:"start"`
	Size     int          `json:"size"`
	Computes []MIGCompute `json:"computes"`
}

// MIGCompute is a compute instance, which is a MIG device.
type MIGCompute struct {
	ID        int    `json:"id"`
	Profile   string `json:"profile"` // "1c.3g.20gb" for a part of its instance
	Start     int    `json:"start"`
	Size      int    `json:"size"`
	UUID      string `json:"uuid"`
	Processes []int  `json:"processes"`
}

// MIG reads how the cards are divided.
func (r *Root) MIG() ([]MIGCard, error) {
	output, err := r.runLedger("list")
	if err != nil {
		return nil, fmt.Errorf("read the MIG state of %s: %w", r.Path, err)
	}
	var cards []MIGCard
	if err := json.Unmarshal(output, &cards); err != nil {
		return nil, fmt.Errorf("read the MIG state of %s: %w", r.Path, err)
	}
	return cards, nil
}

// changeMIG does one thing to a card, and gives the number that is told.
func (r *Root) changeMIG(what string, gpu int, args ...string) (int, error) {
	output, err := r.runLedger(append([]string{what, strconv.Itoa(gpu)}, args...)...)
	if err != nil {
		return 0, fmt.Errorf("%s of GPU %d: %w", what, gpu, err)
	}
	if text := strings.TrimSpace(string(output)); text != "" {
		return strconv.Atoi(text)
	}
	return 0, nil
}

// SetMIGMode does what `nvidia-smi -i <gpu> -mig` does on a card of its kind: where
// a reset is needed, that is the error.
func (r *Root) SetMIGMode(gpu int, enabled bool) error {
	_, err := r.changeMIG("mode", gpu, map[bool]string{true: "1", false: "0"}[enabled])
	return err
}

// ResetGPU makes the pending mode hold. All instances of the card are gone then.
func (r *Root) ResetGPU(gpu int) error {
	_, err := r.changeMIG("reset", gpu)
	return err
}

// Boot does what a boot of the machine does to its cards: all instances are gone,
// and the mode, which Hopper and what came after it do not keep (NVIDIA's MIG user
// guide, "Enable MIG Mode").
func (r *Root) Boot() error {
	cards, err := r.MIG()
	if err != nil {
		return err
	}
	for i, card := range cards {
		if !card.Enabled {
			continue
		}
		if err := r.ResetGPU(i); err != nil {
			return err
		}
		if r.SetMIGMode(i, false) == nil {
			continue
		}
		// This one would have to be reset, and so keeps it.
		if err := r.SetMIGMode(i, true); err != nil {
			return err
		}
	}
	return nil
}

// Anywhere lets the driver choose where an instance is.
const Anywhere = -1

// CreateGPUInstance makes one without compute instances and gives its number.
func (r *Root) CreateGPUInstance(gpu int, profile string, start int) (int, error) {
	return r.changeMIG("create", gpu, profile, strconv.Itoa(start))
}

// CreateComputeInstance makes one of so many slices and gives its number.
func (r *Root) CreateComputeInstance(gpu, instance, slices int) (int, error) {
	return r.changeMIG("compute", gpu, strconv.Itoa(instance), strconv.Itoa(slices))
}

// CreateMIG makes an instance and a compute instance of all of it, as
// `nvidia-smi mig -cgi <profile> -C` does.
func (r *Root) CreateMIG(gpu int, profile string, start int) (MIGInstance, error) {
	id, err := r.CreateGPUInstance(gpu, profile, start)
	if err != nil {
		return MIGInstance{}, err
	}
	slices, err := strconv.Atoi(profile[:1])
	if err != nil {
		return MIGInstance{}, err
	}
	if _, err := r.CreateComputeInstance(gpu, id, slices); err != nil {
		return MIGInstance{}, err
	}
	return r.migInstance(gpu, id)
}

func (r *Root) migInstance(gpu, id int) (MIGInstance, error) {
	cards, err := r.MIG()
	if err != nil {
		return MIGInstance{}, err
	}
	for _, instance := range cards[gpu].Instances {
		if instance.ID == id {
			return instance, nil
		}
	}
	return MIGInstance{}, fmt.Errorf("GPU %d has no instance %d", gpu, id)
}

// DestroyComputeInstance destroys one that no process uses.
func (r *Root) DestroyComputeInstance(gpu, instance, id int) error {
	_, err := r.changeMIG("destroy-compute", gpu, strconv.Itoa(instance), strconv.Itoa(id))
	return err
}

// DestroyMIG destroys an instance with its compute instances.
func (r *Root) DestroyMIG(gpu, id int) error {
	instance, err := r.migInstance(gpu, id)
	if err != nil {
		return err
	}
	for _, compute := range instance.Computes {
		if err := r.DestroyComputeInstance(gpu, id, compute.ID); err != nil {
			return err
		}
	}
	_, err = r.changeMIG("destroy", gpu, strconv.Itoa(id))
	return err
}
