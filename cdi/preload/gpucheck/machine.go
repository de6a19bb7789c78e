package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"aliquot.dev/aliquot/cdi"
	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/nvml"
)

// sharesDir is compiled into the library; it is relative to a program's working directory.
const sharesDir = "aliquot-shares"

const libraryName = "libnvidia-ml.so.1"

// shareID is that of every share made here; each is in a folder of its own.
const shareID = "gpucheck"

// placesOfNVML are where libnvidia-ml.so.1 may be: where programs find it, then where containers have it.
func placesOfNVML() []string {
	places := filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
	if listed, err := exec.Command("ldconfig", "-p").Output(); err == nil {
		places = append(places, listedLibraries(string(listed))...)
	}
	return append(places, "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib",
		"/run/nvidia/driver/usr/lib64", "/run/nvidia/driver/usr/lib/x86_64-linux-gnu")
}

var listedNVML = regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(libraryName) + ` \(.*x86-64.*\) => (\S+)$|^\s*` + regexp.QuoteMeta(libraryName) + ` \(.*AArch64.*\) => (\S+)$`)

// listedLibraries are the folders in which ldconfig -p has NVML.
func listedLibraries(listing string) (folders []string) {
	for _, match := range listedNVML.FindAllStringSubmatch(listing, -1) {
		folders = append(folders, filepath.Dir(match[1]+match[2]))
	}
	return folders
}

func findNVML(places []string) (string, error) {
	for _, place := range places {
		path := filepath.Join(place, libraryName)
		if _, err := os.Stat(path); place != "" && err == nil {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("no %s in %s: is there a driver?", libraryName, strings.Join(places, ", "))
}

// openNode finds the driver wherever it is: package nvml is given a root that has NVML where it looks.
func openNode() (node *nvml.Node, done func(), err error) {
	library, err := findNVML(placesOfNVML())
	if err != nil {
		return nil, nil, err
	}
	root, err := os.MkdirTemp("", "gpucheck-root-")
	if err != nil {
		return nil, nil, err
	}
	folder := filepath.Join(root, "usr", "lib64")
	err = os.MkdirAll(folder, 0o755)
	if err == nil {
		err = os.Symlink(library, filepath.Join(folder, libraryName))
	}
	if err != nil {
		os.RemoveAll(root)
		return nil, nil, err
	}
	return nvml.New(nvml.Driver{Root: "/", RootMount: root}), func() { os.RemoveAll(root) }, nil
}

func firstGPU(node *nvml.Node) (gpu.Device, error) {
	devices, skipped, err := node.Devices()
	if err != nil {
		return gpu.Device{}, err
	}
	if len(devices) == 0 {
		return gpu.Device{}, fmt.Errorf("no GPU can be shared: %w", errors.Join(skipped...))
	}
	return devices[0], nil
}

// makeShare makes dir/aliquot-shares with one share of a GPU, as prepare does, and returns where the share's files are.
func makeShare(dir, uuid string, quota cdi.Quota) (string, error) {
	quota.GPU = uuid
	if quota.CorePolicy == "" {
		quota.CorePolicy = "Fixed"
	}
	layout := cdi.Layout{SpecDir: filepath.Join(dir, "specs"), SharesDir: dir}
	store, err := cdi.NewStore(layout)
	if err != nil {
		return "", err
	}
	device := cdi.Device{Request: "gpu", ID: shareID, Quota: &quota}
	if err := store.WriteShares(cdi.Claim{UID: sharesDir, Devices: []cdi.Device{device}}); err != nil {
		return "", err
	}
	return layout.ShareDir(sharesDir, device), nil
}
