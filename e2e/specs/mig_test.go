//go:build e2e

package specs_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/simdriver"
)

const migClass = "mig.gpu.aliquot.dev"

// onGPU selects a GPU itself.
func onGPU(index int) string {
	return fmt.Sprintf("device.attributes['gpu.aliquot.dev'].index == %d", index)
}

// profileOn selects partitions of a profile, of one GPU if index is not negative.
func profileOn(index int, profile string) string {
	selector := fmt.Sprintf("device.attributes['gpu.aliquot.dev'].profile == '%s'", profile)
	if index >= 0 {
		selector += fmt.Sprintf(" && device.attributes['gpu.aliquot.dev'].parentIndex == %d", index)
	}
	return selector
}

// cards is how the hardware of the spec's node is divided.
func (s *spec) cards() []simdriver.MIGCard {
	s.Helper()
	driver, err := s.Driver(s.node)
	s.must(err)
	cards, err := driver.MIG()
	s.must(err)
	return cards
}

// divided checks a card: its mode and "profile@start" of each partition, in order of start.
func (s *spec) divided(card int, want string) {
	s.Helper()
	if got := describe(s.cards()[card]); got != want {
		s.Errorf("card %d is divided %q, want %q", card, got, want)
	}
}

func describe(card simdriver.MIGCard) string {
	slices.SortFunc(card.Instances, func(a, b simdriver.MIGInstance) int { return cmp.Compare(a.Start, b.Start) })
	parts := []string{fmt.Sprint(card.Enabled)}
	for _, instance := range card.Instances {
		parts = append(parts, fmt.Sprintf("%s@%d", instance.Profile, instance.Start))
	}
	return strings.Join(parts, " ")
}

// sees checks that a pod's only container sees the one partition of a card, and as much memory as that has.
func (s *spec) sees(pod string, card int, memory string) {
	s.Helper()
	programs, err := s.Holding(s.Context(), s.namespace, pod, 1)
	s.must(err)
	instances := s.cards()[card].Instances
	// CUDA tells a UUID's bytes; the program writes all as a GPU's.
	if len(instances) != 1 || len(instances[0].Computes) != 1 ||
		!slices.Equal(programs[0].GPUs(), []string{strings.Replace(instances[0].Computes[0].UUID, "MIG-", "GPU-", 1)}) {
		s.Errorf("pod %s sees %v, card %d has %+v", pod, programs[0].GPUs(), card, instances)
	}
	if programs[0].Shown() != bytesOf(memory) {
		s.Errorf("pod %s is shown %d bytes, want %s", pod, programs[0].Shown(), memory)
	}
}

func TestSharesAndPartitionsTakeTurns(t *testing.T) {
	s := begin(t, hopper)
	share := s.template("share", request{name: "gpu", memory: "10Gi", selector: onGPU(0)})
	part := s.template("part", request{name: "gpu", class: migClass, selector: profileOn(0, "3g.40gb")})
	s.start("first-share", share, cuda("main"))
	s.held("first-share", "10Gi")
	s.start("first-part", part, cuda("main"))
	_, err := s.Unschedulable(t.Context(), s.namespace, "first-part")
	s.must(err)
	s.divided(0, "false")

	s.remove("first-share")
	s.sees("first-part", 0, "40448Mi")
	s.divided(0, "true 3g.40gb@4")
	s.start("second-share", share, cuda("main"))
	_, err = s.Unschedulable(t.Context(), s.namespace, "second-share")
	s.must(err)

	s.remove("first-part")
	s.held("second-share", "10Gi")
	s.divided(0, "false")
}

// Pods that were written for NVIDIA's device plugin run as they are.
func TestPartitionsFillAGPUThenTheNext(t *testing.T) {
	s := begin(t, hopper)
	name := corev1.ResourceName("nvidia.com/mig-1g.10gb")
	for i := range 8 {
		c := cuda("main")
		c.Resources.Limits = corev1.ResourceList{name: resource.MustParse("1")}
		s.start(fmt.Sprintf("slice-%d", i), corev1.PodResourceClaim{}, c)
		_, err := s.Holding(t.Context(), s.namespace, fmt.Sprintf("slice-%d", i), 1)
		s.must(err)
	}
	s.divided(0, "true 1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 1g.10gb@4 1g.10gb@5 1g.10gb@6")
	s.divided(1, "true 1g.10gb@6")
}

func TestPartitionsOfSeveralProfilesShareAGPU(t *testing.T) {
	s := begin(t, hopper)
	var requests []request
	var containers []corev1.Container
	for i, profile := range []string{"3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"} {
		r := request{name: fmt.Sprintf("part-%d", i), class: migClass, selector: profileOn(2, profile)}
		c := cuda(r.name)
		c.Resources.Claims = []corev1.ResourceClaim{{Name: "parts", Request: r.name}}
		requests, containers = append(requests, r), append(containers, c)
	}
	s.start("mix", s.template("parts", requests...), containers...)
	programs, err := s.Holding(t.Context(), s.namespace, "mix", 1)
	s.must(err)
	s.divided(2, "true 2g.20gb@0 1g.10gb@2 1g.10gb@3 3g.40gb@4")
	seen := map[string]bool{}
	for i, want := range []string{"40448Mi", "20096Mi", "9984Mi", "9984Mi"} {
		for _, uuid := range programs[i].GPUs() {
			seen[uuid] = true
		}
		if programs[i].Shown() != bytesOf(want) {
			t.Errorf("container %d is shown %d bytes, want %s", i, programs[i].Shown(), want)
		}
	}
	if len(seen) != 4 {
		t.Errorf("four containers see the partitions %v", seen)
	}
}

// Shares of one partition are held to their part of it, and it lasts as long as one of them.
func TestPartitionIsShared(t *testing.T) {
	s := begin(t, hopper)
	part := func(name, memory, cores string) corev1.PodResourceClaim {
		return s.template(name, request{name: "gpu", memory: memory, cores: cores, class: migClass, selector: profileOn(3, "1g.10gb")})
	}
	s.start("partner-a", part("a", "4Gi", "60"), cuda("main"))
	a := s.held("partner-a", "4Gi") // while a claim is being written, the scheduler may count it twice
	s.start("partner-b", part("b", "5Gi", "40"), cuda("main"))
	b := s.held("partner-b", "5Gi")
	if !slices.Equal(a[0].GPUs(), b[0].GPUs()) {
		t.Errorf("the shares are of %v and %v", a[0].GPUs(), b[0].GPUs())
	}
	s.remove("partner-a")
	s.divided(3, "true 1g.10gb@6")
	s.stillHeld("partner-b", "5Gi")
}

// What an administrator makes is offered with its UUID, given out as it is, and stays.
func TestPartitionOfAnAdministrator(t *testing.T) {
	s := begin(t, hopper)
	driver, err := s.Driver(s.node)
	s.must(err)
	s.must(driver.SetMIGMode(7, true))
	made, err := driver.CreateMIG(7, "1g.10gb", 0)
	s.must(err)
	uuid := made.Computes[0].UUID
	s.eventually("the partition is offered", func(ctx context.Context) (bool, error) {
		return s.offersPartition(ctx, "gpu-7-mig-1g-10gb-0", uuid)
	})
	s.start("of-the-admin", s.template("part", request{name: "gpu", class: migClass,
		selector: "device.attributes['gpu.aliquot.dev'].?uuid.orValue('') == '" + uuid + "'"}), cuda("main"))
	s.sees("of-the-admin", 7, "9984Mi")
	s.start("over-it", s.template("over", request{name: "gpu", class: migClass, selector: profileOn(7, "4g.40gb")}), idle("main"))
	_, err = s.Unschedulable(t.Context(), s.namespace, "over-it")
	s.must(err)
	s.remove("of-the-admin")
	s.divided(7, "true 1g.10gb@0")

	s.must(driver.DestroyMIG(7, made.ID))
	_, err = s.Holding(t.Context(), s.namespace, "over-it", 1) // it fits now
	s.must(err)
	s.divided(7, "true 4g.40gb@0")
	s.remove("over-it")
	s.divided(7, "false")
}

// offersPartition says whether a partition is published, with that UUID or, if it is empty, without any.
func (s *spec) offersPartition(ctx context.Context, name, uuid string) (bool, error) {
	devices, err := s.devices(ctx, s.node)
	if err != nil {
		return false, err
	}
	for _, device := range devices {
		if device.Name == name {
			got := device.Attributes[v1alpha1.AttributeUUID].StringValue
			return got == nil && uuid == "" || got != nil && *got == uuid, nil
		}
	}
	return false, nil
}

// The MIG manager says with a label that it is at work.
func TestGPUsAreTaintedWhileTheyAreReconfigured(t *testing.T) {
	s := begin(t, hopper)
	for _, state := range []string{"pending", "success"} {
		patch := fmt.Sprintf(`{"metadata": {"labels": {"nvidia.com/mig.config.state": %q}}}`, state)
		_, err := s.Client.CoreV1().Nodes().Patch(t.Context(), s.node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		s.must(err)
		s.eventually("devices are tainted while that goes on", func(ctx context.Context) (bool, error) {
			devices, err := s.devices(ctx, s.node)
			tainted := len(devices) > 0 && !slices.ContainsFunc(devices, func(d resourceapi.Device) bool {
				return (len(d.Taints) == 1 && d.Taints[0].Key == v1alpha1.TaintReconfiguring && d.Taints[0].Effect == resourceapi.DeviceTaintEffectNoSchedule) != (state == "pending")
			})
			return tainted, err
		})
	}
}

// On Ampere the mode takes a reset, which is the administrator's: a GPU offers what its mode allows.
func TestAmpereOffersWhatItsModeAllows(t *testing.T) {
	s := begin(t, ampere)
	driver, err := s.Driver(s.node)
	s.must(err)
	set := func(enabled bool, want string) {
		if err := driver.SetMIGMode(0, enabled); err == nil || !strings.Contains(err.Error(), "error 16") { // NVML_ERROR_RESET_REQUIRED
			t.Errorf("the mode of an Ampere is set without a reset: %v", err)
		}
		s.must(driver.ResetGPU(0))
		s.eventually(want+" is offered", func(ctx context.Context) (bool, error) {
			devices, err := s.devices(ctx, s.node)
			return slices.ContainsFunc(devices, func(d resourceapi.Device) bool { return d.Name == want }) &&
				slices.ContainsFunc(devices, func(d resourceapi.Device) bool { return d.Name == "gpu-0" }) == !enabled, err
		})
	}
	set(true, "gpu-0-mig-1g-5gb-6")
	for i := range 2 {
		s.start(fmt.Sprintf("ampere-%d", i), s.template(fmt.Sprint("part-", i), request{name: "gpu", class: migClass, selector: profileOn(-1, "3g.20gb")}), cuda("main"))
		_, err := s.Holding(t.Context(), s.namespace, fmt.Sprintf("ampere-%d", i), 1)
		s.must(err)
	}
	s.divided(0, "true 3g.20gb@0 3g.20gb@4")
	s.start("ampere-share", s.template("share", request{name: "gpu", memory: "10Gi"}), cuda("main"))
	s.held("ampere-share", "10Gi") // of another GPU
	s.remove("ampere-0")
	s.remove("ampere-1")
	s.divided(0, "true")
	set(false, "gpu-0")
}

// A partition that is removed by hand under a pod is made again for it, and the administrator is told.
func TestPartitionRemovedByHand(t *testing.T) {
	s := begin(t, hopper)
	s.start("bereft", s.template("part", request{name: "gpu", class: migClass, selector: profileOn(5, "1g.10gb")}), idle("main"))
	_, err := s.Holding(t.Context(), s.namespace, "bereft", 1)
	s.must(err)
	driver, err := s.Driver(s.node)
	s.must(err)
	lost := s.cards()[5].Instances[0]
	s.must(driver.DestroyMIG(5, lost.ID))
	s.eventually("it is made again, and told", func(ctx context.Context) (bool, error) {
		again := s.cards()[5].Instances
		events, err := s.Client.EventsV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		told := slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
			return e.Reason == "PartitionLost" && strings.Contains(e.Note, lost.Computes[0].UUID)
		})
		return told && len(again) == 1 && len(again[0].Computes) == 1 && again[0].Computes[0].UUID != lost.Computes[0].UUID, err
	})
	s.remove("bereft")
	s.divided(5, "false")
}
