//go:build e2e

package specs_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/workload"
)

// largest is the largest share that is asked for on a node, in pairs of MiB: large enough to fill GPUs, small enough that
// pods need not wait for long.
var largest = map[string]int{hopper: 20 << 10 / 2, crashing: 5 << 10 / 2}

// maker makes one tenant.
type maker struct {
	c      *chaos
	random *rand.Rand
	node   string
	name   string
	*tenant
}

// resident is a tenant that is there from before the first trouble until after the last.
func (c *chaos) resident(node, name string) *tenant {
	m := &maker{c: c, random: rand.New(rand.NewPCG(0, 0)), node: node, name: name, tenant: &tenant{lasting: true, stay: forever}}
	m.oneShare()
	return m.tenant
}

// anyTenant is of any kind.
func (c *chaos) anyTenant(random *rand.Rand, node, name string) *tenant {
	m := &maker{c: c, random: random, node: node, name: name, tenant: &tenant{
		lasting: random.IntN(2) == 0,
		stay:    time.Duration(random.IntN(10_000)) * time.Millisecond,
		forced:  random.IntN(6) == 0,
	}}
	kinds := []func(){m.oneShare, m.oneShare, m.oneShare, m.oneShare, m.twoContainers, m.twoClaims, m.sharedByContainers, m.sharedByPods}
	if node == hopper { // on the other one a GPU that nobody has a share of would be waited for too long
		kinds = append(kinds, m.wholeGPU, m.partition, m.shareOfPartition)
	}
	kinds[random.IntN(len(kinds))]()
	return m.tenant
}

// share is a request for a share, and the bytes that can be had of it: an even number of MiB, so that shares of one GPU
// add up.
func (m *maker) share(class, selector string, pairs int) (request, uint64) {
	mebibytes := 2 * (1 + m.random.IntN(pairs))
	r := request{name: "gpu", memory: fmt.Sprintf("%dMi", mebibytes), class: class, selector: selector}
	if m.random.IntN(3) == 0 {
		r.cores = fmt.Sprint(m.random.IntN(30))
	}
	return r, uint64(mebibytes) << 20
}

func (m *maker) oneShare() {
	r, bytes := m.share("", "", largest[m.node])
	m.add(m.name, bytes, m.template("gpu", r), m.container("main", bytes, bytes, "gpu"))
}

func (m *maker) twoContainers() {
	a, bytesA := m.share("", "", largest[m.node])
	b, bytesB := m.share("", "", largest[m.node])
	claims := append(m.template("a", a), m.template("b", b)...)
	m.add(m.name, bytesA+bytesB, claims, m.container("first", bytesA, bytesA, "a"), m.container("second", bytesB, bytesB, "b"))
}

func (m *maker) twoClaims() {
	a, bytesA := m.share("", "", largest[m.node])
	b, bytesB := m.share("", "", largest[m.node])
	both := bytesA + bytesB
	m.add(m.name, both, append(m.template("a", a), m.template("b", b)...), m.container("main", both, both, "a", "b"))
}

// sharedByContainers has two containers that take of one share: who comes first gets more.
func (m *maker) sharedByContainers() {
	r, bytes := m.share("", "", largest[m.node])
	m.add(m.name, bytes, m.template("gpu", r), m.container("first", 0, bytes, "gpu"), m.container("second", 0, bytes, "gpu"))
}

func (m *maker) sharedByPods() {
	r, bytes := m.share("", "", largest[m.node])
	m.claims = map[string][]request{m.name: {r}}
	uses := []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &m.name}}
	m.add(m.name+"-a", bytes, uses, m.container("main", 0, bytes, "gpu"))
	m.add(m.name+"-b", bytes, uses, m.container("main", 0, bytes, "gpu"))
}

func (m *maker) wholeGPU() {
	m.add(m.name, 0, m.template("gpu", request{name: "gpu", class: v1alpha1.DriverName}), m.container("main", 0, 0, "gpu"))
}

// partition leaves 7g.80gb out: it shows more than the simulated card has, which without partitions keeps more to itself.
func (m *maker) partition() {
	profiles := []string{"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb"}
	r := request{name: "gpu", class: migClass, selector: profileOn(-1, profiles[m.random.IntN(len(profiles))])}
	m.add(m.name, 0, m.template("gpu", r), m.container("main", 0, 0, "gpu"))
}

func (m *maker) shareOfPartition() {
	r, bytes := m.share(migClass, profileOn(-1, "1g.10gb"), 5<<10/2)
	m.add(m.name, bytes, m.template("gpu", r), m.container("main", bytes, bytes, "gpu"))
}

// template adds a template and returns how a pod uses it.
func (m *maker) template(claim string, r request) []corev1.PodResourceClaim {
	if m.templates == nil {
		m.templates = map[string][]request{}
	}
	name := m.name + "-" + claim
	m.templates[name] = []request{r}
	return []corev1.PodResourceClaim{{Name: claim, ResourceClaimTemplateName: &name}}
}

// container takes what it can get of its claims, which should be from least to most bytes; no most: all that its devices
// show. One that does not last does it twice.
func (m *maker) container(name string, least, most uint64, claims ...string) corev1.Container {
	alloc := workload.Program + " --device all"
	if least > 0 {
		alloc += fmt.Sprintf(" --least %d", least)
	}
	if most > 0 {
		alloc += fmt.Sprintf(" --most %d", most)
	} else {
		alloc += " --whole"
	}
	c := container(name, append(strings.Fields(alloc), "--hold")...)
	if !m.lasting {
		c = container(name, "sh", "-c", fmt.Sprintf("%s && sleep %d && exec %[1]s", alloc, m.random.IntN(5)))
	}
	c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	for _, claim := range claims {
		c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: claim})
	}
	return c
}

// add adds a pod that may have so many bytes, together with others of the tenant.
func (m *maker) add(name string, bytes uint64, claims []corev1.PodResourceClaim, containers ...corev1.Container) {
	pod := m.c.on[m.node].podOf(name, claims, containers...)
	pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure // also after a reboot
	if m.lasting {
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	}
	m.pods = append(m.pods, pod)
	m.c.grant(name, budget{node: m.node, of: m.name, bytes: bytes})
}
