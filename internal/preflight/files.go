package preflight

import (
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// installed checks what the plugin put onto the host for containers and the container runtime.
func (c Config) installed() []Finding {
	return []Finding{
		c.program("preload library", filepath.Join(c.DataDir, "lib/*/libaliquot.so"), 0o444),
		c.program("CDI hook", filepath.Join(c.DataDir, "bin/*/nvidia-cdi-hook"), 0o555),
	}
}

// program checks all versions of a file that match a pattern: running pods may use any of them. Each is in a directory
// named by its content.
func (c Config) program(check, pattern string, mode fs.FileMode) Finding {
	const again = "delete it and restart the plugin's pod, which installs it again"
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		return fail(check, "restart the plugin's pod: it installs it at its start", "%s is not there", pattern)
	}
	for _, file := range files {
		if err := usable(file, mode); err != nil {
			return fail(check, again, "%s %v", file, err)
		}
	}
	if len(files) == 1 {
		return ok(check, "%s", files[0])
	}
	return ok(check, "%d versions in %s", len(files), filepath.Dir(filepath.Dir(pattern)))
}

// usable says what is wrong with an installed file, after its name.
func usable(file string, mode fs.FileMode) error {
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("cannot be looked at: %w", err)
	}
	if info.Mode()&mode != mode {
		return fmt.Errorf("has mode %#o, want at least %#o", info.Mode().Perm(), mode)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(content)); sum[:16] != filepath.Base(filepath.Dir(file)) {
		return fmt.Errorf("is damaged: the SHA-256 of its content begins with %s", sum[:16])
	}
	program, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("is no ELF file: %w", err)
	}
	defer program.Close()
	if want, known := machines[runtime.GOARCH]; known && program.Machine != want {
		return fmt.Errorf("is for %s, the node is %s", program.Machine, want)
	}
	return nil
}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// directories checks that the plugin can write where it must.
func (c Config) directories() []Finding {
	data := c.writable("data directory", c.DataDir)
	if data.Level == OK && c.isNoexec(c.DataDir) {
		data = fail(data.Check, "remount the file system of the kubelet's plugins directory without noexec",
			"%s is mounted noexec: containers cannot map the preload library, nor the runtime run the CDI hook", c.DataDir)
	}
	run := c.writable("run directory", c.RunDir)
	if run.Level == OK && !c.isTmpfs(c.RunDir) {
		run = warn(run.Check, "set runDirectory to a directory on a tmpfs, such as /run/aliquot: shares write there all the time, and their files are of no use after a reboot",
			"%s is not on a tmpfs", c.RunDir)
	}
	return []Finding{data, run, c.writable("registrar", c.RegistrarDir), c.writable("CDI directory", c.CDIDir)}
}

// Where less is free, a few shares more fill the file system: one takes 140 KiB in the run directory, in three files.
const (
	fewBytes = 16 << 20
	fewFiles = 1000
)

// writable makes and removes a file. Its name begins with a dot, since the kubelet and the container runtime look at what
// is made in some of these directories.
func (c Config) writable(check, dir string) Finding {
	file, err := os.CreateTemp(dir, ".preflight-*")
	if err != nil {
		return fail(check, "see that it is there, on a file system that is neither mounted read-only nor full", "%s is not writable: %v", dir, cause(err))
	}
	name := file.Name()
	_, err = file.WriteString("preflight\n")
	_ = file.Close()
	if removed := os.Remove(name); err == nil {
		err = removed
	}
	if err != nil {
		return fail(check, "free some space there", "%s is not writable: %v", dir, cause(err))
	}
	stat, err := c.statfs(dir)
	if err != nil {
		return warn(check, "see whether the file system is sound", "%s does not say what is free: %v", dir, err)
	}
	if stat.Bavail*uint64(stat.Bsize) < fewBytes {
		return warn(check, "free some space there", "%s has less than %d MiB free", dir, fewBytes>>20)
	}
	if stat.Files > 0 && stat.Ffree < fewFiles {
		return warn(check, "remove files from its file system", "%s has less than %d inodes free", dir, fewFiles)
	}
	return ok(check, "%s is writable", dir)
}

// cause is an error without the path, which has a random name in it.
func cause(err error) error {
	if path, is := err.(*fs.PathError); is { //nolint:errorlint // as package os returns it
		return path.Err
	}
	return err
}

func (c Config) isNoexec(dir string) bool {
	stat, err := c.statfs(dir)
	return err == nil && stat.Flags&unix.ST_NOEXEC != 0
}

func (c Config) isTmpfs(dir string) bool {
	stat, err := c.statfs(dir)
	return err == nil && stat.Type == unix.TMPFS_MAGIC
}

// statfs asks about the file system that a path is on.
func (c Config) statfs(path string) (stat unix.Statfs_t, err error) {
	if c.fileSystem != nil {
		return c.fileSystem(path)
	}
	return stat, unix.Statfs(path, &stat)
}

// cgroups tells the version of the node's control groups. The kubelet's own check is failCgroupV1, true unless set
// (SetDefaults_KubeletConfiguration in k8s.io/kubernetes/pkg/kubelet/apis/config/v1beta1).
func (c Config) cgroups() Finding {
	const check = "cgroups"
	switch stat, err := c.statfs(c.Cgroup); {
	case err != nil:
		return warn(check, "see that it is mounted", "%s cannot be looked at: %v", c.Cgroup, err)
	case stat.Type == unix.CGROUP2_SUPER_MAGIC:
		return ok(check, "version 2")
	default:
		return warn(check, "have the node boot with version 2 before its kubelet is upgraded, or set failCgroupV1: false in the kubelet's configuration",
			"version 1: Aliquot needs nothing of version 2, but the kubelet of Kubernetes 1.37 does not start with version 1 unless it is told to")
	}
}
