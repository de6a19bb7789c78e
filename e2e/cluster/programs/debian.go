package programs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// A debianPackage is one that building or running the cluster needs, and how
// to tell that it, or something as good, is there.
type debianPackage struct {
	name  string
	probe []string // a command that succeeds when nothing need be installed
	why   string
}

var debianPackages = []debianPackage{
	{"gcc", []string{"gcc", "--version"}, "runc is part C"},
	{"pkg-config", []string{"pkg-config", "--version"}, "runc's build asks it for libseccomp"},
	{"libseccomp-dev", []string{"pkg-config", "--exists", "libseccomp"}, "runc filters system calls with it"},
	{"busybox-static", []string{"busybox", "true"}, "the base image's shell"},
	{"iproute2", []string{"ip", "-Version"}, "sets the cluster's addresses"},
	{"mount", []string{"mount", "--version"}, "kubelet mounts volumes with it"},
}

// installPackages installs the Debian packages that are missing, and says so.
func installPackages(ctx context.Context, log io.Writer) error {
	var missing []string
	for _, p := range debianPackages {
		if err := exec.CommandContext(ctx, p.probe[0], p.probe[1:]...).Run(); err != nil {
			fmt.Fprintf(log, "Debian package %s is missing: %s\n", p.name, p.why)
			missing = append(missing, p.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("this machine lacks %s, and has no apt-get to install it", strings.Join(missing, ", "))
	}
	fmt.Fprintf(log, "installing %s with apt-get\n", strings.Join(missing, ", "))
	if err := run(ctx, "apt-get", "update"); err != nil {
		return err
	}
	return run(ctx, "apt-get", append([]string{"install", "-y", "--no-install-recommends"}, missing...)...)
}

func run(ctx context.Context, name string, args ...string) error {
	var messages bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(cmd.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.Stdout, cmd.Stderr = &messages, &messages
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, args[0], err, strings.TrimSpace(messages.String()))
	}
	return nil
}
