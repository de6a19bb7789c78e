package image

import (
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
)

// Names of the images that every node of the cluster has.
const (
	BaseName  = "aliquot.test/base:latest"
	PauseName = "aliquot.test/pause:latest"
)

// Base is an image for workloads: busybox and the C library, so that both a
// shell and a dynamically linked program run in it.
func Base() Image {
	return Image{Name: BaseName, Root: BaseTree(), Env: []string{"PATH=/usr/bin:/bin"}}
}

// BaseTree is what Base holds, to build other images upon.
func BaseTree() *Tree {
	tree := NewTree().
		Text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n").
		Text("/etc/group", "root:x:0:\nnogroup:x:65534:\n").
		Text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n").
		Folder("/root", 0o700).
		Folder("/tmp", fs.ModeSticky|0o777).
		Folder("/run", 0o755).
		Folder("/usr/lib", 0o755)
	addBusybox(tree)
	addLibc(tree)
	return tree
}

// Pause is the image of the pods' own sandbox containers, which only wait.
func Pause() Image {
	tree := NewTree()
	addBusybox(tree)
	return Image{Name: PauseName, Root: tree, Entrypoint: []string{"/bin/busybox", "sleep", "2147483647"}}
}

func addBusybox(tree *Tree) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		tree.fail(fmt.Errorf("find busybox (Debian package busybox-static): %w", err))
		return
	}
	tree.Program("/bin/busybox", busybox)
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		tree.fail(fmt.Errorf("list the applets of %s: %w", busybox, err))
		return
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			tree.Link("/bin/"+applet, "busybox")
		}
	}
}

// addLibc adds the C library: what any dynamically linked program of this
// machine loads, and its parts that older programs ask for by name.
func addLibc(tree *Tree) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		tree.fail(err)
		return
	}
	libraries, err := Libraries(shell)
	if err != nil {
		tree.fail(err)
		return
	}
	for _, library := range libraries {
		tree.File(library, library)
		if !strings.HasPrefix(filepath.Base(library), "libc.so") {
			continue
		}
		for _, part := range []string{"libdl.so.2", "libpthread.so.0", "libm.so.6", "librt.so.1"} {
			tree.File(filepath.Join(filepath.Dir(library), part), filepath.Join(filepath.Dir(library), part))
		}
	}
}
