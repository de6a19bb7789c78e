//go:build e2e

package specs_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/release"
	"aliquot.dev/aliquot/e2e/scenario"
)

// Nobody waits for admission: what it would have refused the node refuses, in its words, and the controller tells later
// of the classes that slipped in.
func TestNodeRefusesWhatAdmissionDidNotSee(t *testing.T) {
	s := alone(t, sharing)
	s.class("bounded-spec.gpu.aliquot.dev", `{memory: {max: 10Gi}}`)
	s.scaleController(0)
	s.start("theirs", s.template("theirs", request{name: "gpu", class: "gpu.example.com"}), idle("main"))
	s.start("too-large", s.template("large", request{name: "gpu", memory: "20Gi", class: "bounded-spec.gpu.aliquot.dev"}), cuda("main"))
	s.start("unknown-kind", s.unknownParameters("kind"), cuda("main"))
	s.class("mistaken-spec.gpu.aliquot.dev", `{memory: {maximum: 10Gi}}`)
	plugin := s.pluginReady()

	s.told("too-large", `[memory]: Invalid value: "20Gi"`, "allows at most 10Gi")
	s.told("unknown-kind", "devices.config", `claim parameters.kind: Unsupported value: "Unknown"`, "ShareConfig")
	s.notStarted("too-large")
	s.notStarted("unknown-kind")
	s.start("other", s.share("1Gi"), cuda("main"))
	s.held("other", "1Gi")
	s.samePlugin(plugin)
	_, err := s.Unschedulable(t.Context(), s.namespace, "theirs")
	s.must(err)

	s.scaleController(2)
	const mistake = `unknown field "memory.maximum"`
	s.eventOf(metav1.NamespaceDefault, "DeviceClass", "mistaken-spec.gpu.aliquot.dev", "InvalidClass: spec.config[0].opaque.parameters", mistake)
	if described := s.kubectl("describe", "deviceclass", "mistaken-spec.gpu.aliquot.dev"); !strings.Contains(described, mistake) {
		t.Errorf("kubectl describe says nothing of it:\n%s", described)
	}
	s.refuses()
	// No record was made of the claims that are allocated here, so these must go before the node can agree.
	s.remove("too-large")
	s.remove("unknown-kind")
}

// class applies a class of shares with parameters of its own.
func (s *spec) class(name, parameters string) {
	s.Helper()
	a := s.applied(fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: %s
spec:
  selectors:
  - cel:
      expression: device.driver == 'gpu.aliquot.dev' && device.allowMultipleAllocations
  config:
  - opaque:
      driver: gpu.aliquot.dev
      parameters: {apiVersion: gpu.aliquot.dev/v1alpha1, kind: ShareClass, %s
`, name, strings.TrimPrefix(parameters, "{")))
	if !a.ok {
		s.Fatal(a.output)
	}
	s.Cleanup(func() {
		if err := s.Client.ResourceV1().DeviceClasses().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
}

// unknownParameters makes a claim whose parameters are of no kind that there is. The scheduler does not look into them.
func (s *spec) unknownParameters(name string) corev1.PodResourceClaim {
	s.Helper()
	spec := claimSpec([]request{{name: "gpu", memory: "1Gi"}})
	spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver:     v1alpha1.DriverName,
			Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "Unknown"}`)},
		},
	}}}
	_, err := s.Client.ResourceV1().ResourceClaims(s.namespace).Create(s.Context(),
		&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	s.must(err)
	return corev1.PodResourceClaim{Name: name, ResourceClaimName: &name}
}

// scaleController waits until there are so many replicas of the controller, and no others.
func (s *spec) scaleController(replicas int32) {
	s.Helper()
	s.kubectl("scale", "--namespace", release.Namespace, "deployment/"+release.Controller, fmt.Sprintf("--replicas=%d", replicas))
	s.eventually(fmt.Sprintf("%d replicas of the controller serve", replicas), func(ctx context.Context) (bool, error) {
		pods, err := s.controllers(ctx)
		if err != nil || len(pods) != int(replicas) {
			return false, err
		}
		for _, pod := range pods {
			if !scenario.Ready(pod) {
				return false, nil
			}
		}
		return true, nil
	})
}

func (s *spec) controllers(ctx context.Context) ([]corev1.Pod, error) {
	list, err := s.Client.CoreV1().Pods(release.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// refuses waits until the API server asks the webhooks: its view of the Service's endpoints lags.
func (s *spec) refuses() {
	s.Helper()
	s.eventually("a claim for nothing is refused", func(ctx context.Context) (bool, error) {
		_, err := s.Client.ResourceV1().ResourceClaims(s.namespace).Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "nothing"}, Spec: claimSpec([]request{{name: "gpu", memory: "0"}}),
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "ask for 1Mi at least"), nil
	})
}

// Certificates that are lost, or about to end, are made anew and served by the replicas that run.
func TestCertificatesAreRenewedWithoutARestart(t *testing.T) {
	s := alone(t, sharing)
	before, err := s.controllers(t.Context())
	s.must(err)
	secrets := s.Client.CoreV1().Secrets(release.Namespace)
	old, err := secrets.Get(t.Context(), release.Certificates, metav1.GetOptions{})
	s.must(err)
	s.kubectl("patch", "secret", "--namespace", release.Namespace, release.Certificates, "--patch", `{"data": null}`)

	var authority string
	s.eventually("there are other certificates", func(ctx context.Context) (bool, error) {
		now, err := secrets.Get(ctx, release.Certificates, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		authority = base64.StdEncoding.EncodeToString(now.Data["ca.crt"])
		return len(now.Data["tls.crt"]) > 0 && string(now.Data["tls.crt"]) != string(old.Data["tls.crt"]), nil
	})
	s.eventually("the API server is told who signed them", func(ctx context.Context) (bool, error) {
		output, err := s.Kubectl(ctx, "get", "validatingwebhookconfigurations,mutatingwebhookconfigurations", release.Name, "--output", "jsonpath={.items[*].webhooks[*].clientConfig.caBundle}")
		return strings.Count(output, authority) == len(strings.Fields(output)), err
	})
	s.refuses()
	after, err := s.controllers(t.Context())
	s.must(err)
	for i := range after {
		if len(after) != len(before) || after[i].UID != before[i].UID || scenario.Restarts(after[i]) != scenario.Restarts(before[i]) {
			t.Errorf("%s was started anew", after[i].Name)
		}
	}
}

// An API server without a feature gate drops what the gate guards, in silence. What it stores tells.
func TestDroppedFieldsAreToldOnTheNode(t *testing.T) {
	s := watch(t, "nowhere")
	slices := s.Client.ResourceV1().ResourceSlices()
	slice, err := slices.Create(t.Context(), &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "dropped-fields"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.DriverName, NodeName: &s.node,
			Pool: resourceapi.ResourcePool{Name: s.node + "/gpus", ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{
				Name:       "gpu-0",
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{v1alpha1.AttributeType: {StringValue: ptr.To(v1alpha1.TypeGPU)}},
			}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	t.Cleanup(func() {
		if err := slices.Delete(context.Background(), slice.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	s.nodeTold("FieldsDropped", "Turn on the feature gate DRAConsumableCapacity")
	for _, shared := range []*bool{ptr.To(true), nil} { // mended, and dropped again: the same Event, told twice
		slice.Spec.Devices[0].AllowMultipleAllocations = shared
		slice, err = slices.Update(t.Context(), slice, metav1.UpdateOptions{})
		s.must(err)
		s.eventually("the metric follows", func(ctx context.Context) (bool, error) {
			metrics, err := s.controllerMetrics(ctx)
			return strings.Contains(metrics, `aliquot_slice_fields_dropped{feature_gate="DRAConsumableCapacity",node="nowhere"} 1`) == (shared == nil), err
		})
	}
	s.eventually("the Event was told again", func(ctx context.Context) (bool, error) {
		list, err := s.Client.EventsV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "regarding.name=" + s.node + ",reason=FieldsDropped"})
		return err == nil && len(list.Items) == 1 && list.Items[0].Series != nil, err
	})
}

// controllerMetrics are what all replicas serve, through the API server's proxy.
func (s *spec) controllerMetrics(ctx context.Context) (string, error) {
	pods, err := s.controllers(ctx)
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, pod := range pods {
		output, err := s.Kubectl(ctx, "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8081/proxy/metrics", release.Namespace, pod.Name))
		if err != nil {
			return "", err
		}
		all.WriteString(output)
	}
	return all.String(), nil
}
