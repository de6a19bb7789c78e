package simdriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// libraryFolder is where a Debian driver root has its libraries; nvcdi and the
// C libraries both rely on it.
const libraryFolder = "usr/lib/x86_64-linux-gnu"

// stateFolder holds what stands for the hardware itself.
const stateFolder = "run/nvidia-sim"

// Character device numbers of the real driver: 195 is registered for the GPUs;
// those of nvidia-uvm and nvidia-caps are given at load time.
const (
	majorGPU  = 195
	majorUVM  = 510
	majorCaps = 237 // as native/root.c has it
	minorCtl  = 255
)

// ErrNotRoot says that NewRoot may not make device nodes; tests may skip on it.
var ErrNotRoot = errors.New("making device nodes needs root (CAP_MKNOD)")

// Root is a driver root on disk.
type Root struct {
	Path     string
	Hardware Hardware
}

// NewRoot builds the driver and lays it out under dir, which may exist, with
// the device nodes of the hardware. The root must not be moved.
func NewRoot(ctx context.Context, dir string, hw Hardware) (*Root, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := hw.Validate(); err != nil {
		return nil, err
	}
	r := &Root{Path: dir, Hardware: hw}
	for _, make := range []func(context.Context) error{
		r.makeFolders, r.makeNodes, r.makeCaps, r.makePrograms, r.makeState, r.makePartitions, r.makeSysfs,
	} {
		if err := make(ctx); err != nil {
			return nil, fmt.Errorf("make driver root %s: %w", dir, err)
		}
	}
	return r, nil
}

// Open gives a root that NewRoot made earlier, without its description.
func Open(dir string) (*Root, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r := &Root{Path: dir}
	if _, err := os.Stat(r.State("hardware")); err != nil {
		return nil, fmt.Errorf("%s is no simulated driver root: %w", dir, err)
	}
	return r, nil
}

// LibraryDir is what LD_LIBRARY_PATH must hold for programs on the host.
func (r *Root) LibraryDir() string { return filepath.Join(r.Path, libraryFolder) }

// NVML is the path of the NVML library.
func (r *Root) NVML() string { return filepath.Join(r.LibraryDir(), libNVML) }

// StateDir is what containers must find at /run/nvidia-sim.
func (r *Root) StateDir() string { return filepath.Join(r.Path, stateFolder) }

// State is the path of a file that stands for the hardware.
func (r *Root) State(name string) string { return filepath.Join(r.Path, stateFolder, name) }

// Remove deletes the root. Programs that still use it keep what they mapped.
func (r *Root) Remove() error {
	for _, folder := range []string{"usr", "dev", "run/nvidia-sim", "sys", "proc"} {
		if err := os.RemoveAll(filepath.Join(r.Path, folder)); err != nil {
			return err
		}
	}
	os.Remove(filepath.Join(r.Path, "run"))
	os.Remove(r.Path) // only if nothing of others is left in it
	return nil
}

func (r *Root) makeFolders(context.Context) error {
	for _, folder := range []string{libraryFolder, "usr/bin", "dev", stateFolder} {
		if err := os.MkdirAll(filepath.Join(r.Path, folder), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (r *Root) makeNodes(context.Context) error {
	nodes := map[string]uint64{
		"nvidiactl":        unix.Mkdev(majorGPU, minorCtl),
		"nvidia-uvm":       unix.Mkdev(majorUVM, 0),
		"nvidia-uvm-tools": unix.Mkdev(majorUVM, 1),
	}
	for _, gpu := range r.Hardware.GPUs {
		nodes["nvidia"+strconv.Itoa(*gpu.Minor)] = unix.Mkdev(majorGPU, uint32(*gpu.Minor))
	}
	for name, number := range nodes {
		if err := makeNode(filepath.Join(r.Path, "dev", name), number, 0o666); err != nil {
			return err
		}
	}
	return nil
}

func makeNode(path string, number uint64, mode fs.FileMode) error {
	err := unix.Mknod(path, unix.S_IFCHR|uint32(mode), int(number))
	switch {
	case errors.Is(err, unix.EPERM):
		return ErrNotRoot
	case err != nil && !errors.Is(err, fs.ErrExist):
		return fmt.Errorf("mknod %s: %w", path, err)
	}
	return os.Chmod(path, mode) // whatever the umask was
}

func (r *Root) makePrograms(ctx context.Context) error {
	cache, err := built(ctx)
	if err != nil {
		return err
	}
	for _, soname := range []string{libCUDA, libNVML} {
		bare := strings.TrimSuffix(soname, ".1")
		versioned := bare + "." + r.Hardware.DriverVersion
		if err := replaceFile(filepath.Join(cache, soname), filepath.Join(r.LibraryDir(), versioned)); err != nil {
			return err
		}
		if err := link(versioned, filepath.Join(r.LibraryDir(), soname)); err != nil {
			return err
		}
		if err := link(soname, filepath.Join(r.LibraryDir(), bare)); err != nil {
			return err
		}
	}
	return replaceFile(filepath.Join(cache, nvidiaSMI), filepath.Join(r.Path, "usr/bin", nvidiaSMI))
}

// replaceFile leaves programs that run from the old file alone.
func replaceFile(from, to string) error {
	if err := copyFile(from, to+".new", 0o755); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}

func link(target, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, path)
}

func (r *Root) makeState(context.Context) error {
	if err := os.WriteFile(r.State("hardware"), []byte(r.Hardware.flat()), 0o644); err != nil {
		return err
	}
	for _, name := range []string{"ledger", "compute", "mig"} {
		if err := makeEmpty(r.State(name)); err != nil {
			return err
		}
	}
	return r.writeCallFaults(nil)
}

// makeEmpty makes a file to which the libraries give its shape, unless it has
// one. Any user may use a GPU.
func makeEmpty(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Chmod(0o666)
}

// makeSysfs lays out what Linux tells of a card under /sys: which root complex
// it hangs from and which NUMA node is near. A VM often knows neither.
func (r *Root) makeSysfs(context.Context) error {
	for _, gpu := range r.Hardware.GPUs {
		if gpu.PCI.Root == "" {
			continue
		}
		address := strings.ToLower(gpu.PCI.BusID[4:])
		device := filepath.Join("devices", gpu.PCI.Root, address)
		if err := os.MkdirAll(filepath.Join(r.Path, "sys", device), 0o755); err != nil {
			return err
		}
		node := -1
		if gpu.PCI.NUMANode != nil {
			node = *gpu.PCI.NUMANode
		}
		if err := os.WriteFile(filepath.Join(r.Path, "sys", device, "numa_node"), []byte(strconv.Itoa(node)+"\n"), 0o644); err != nil {
			return err
		}
		bus := filepath.Join(r.Path, "sys/bus/pci/devices")
		if err := os.MkdirAll(bus, 0o755); err != nil {
			return err
		}
		if err := link(filepath.Join("../../..", device), filepath.Join(bus, address)); err != nil {
			return err
		}
	}
	return nil
}
