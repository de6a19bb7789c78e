package cgroup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	const v2Beside = "40 24 0:35 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	tests := map[string]struct {
		mountinfo string
		want      Hierarchies
	}{
		"version 1, with version 2 beside it": {
			mountinfo: "30 24 0:25 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n" + v2Beside +
				"31 30 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:5 - cgroup cgroup rw,cpu,cpuacct\n" +
				"32 30 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/agent,name=systemd\n",
			want: Hierarchies{
				{path: "/sys/fs/cgroup/cpu,cpuacct", kind: "cgroup", options: "cpu,cpuacct"},
				{path: "/sys/fs/cgroup/systemd", kind: "cgroup", options: "name=systemd,none"},
			},
		},
		"version 2": {
			mountinfo: "40 24 0:35 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n",
			want:      Hierarchies{{path: "/sys/fs/cgroup", kind: "cgroup2"}},
		},
		"none": {mountinfo: "30 24 0:25 / /sys rw - sysfs sysfs rw\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parse(strings.NewReader(test.mountinfo))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(hierarchy{})); diff != "" {
				t.Errorf("hierarchies (-want +got):\n%s", diff)
			}
		})
	}
}
