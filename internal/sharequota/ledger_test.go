package sharequota

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// published are devices of 80Gi.
type published struct{}

func (published) Slices(context.Context) ([]resourceapi.ResourceSlice, error) {
	return []resourceapi.ResourceSlice{{Spec: resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, Devices: []resourceapi.Device{
		{Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}}},
	}}}}, nil
}

// store is an API server.
func store(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), resourceapi.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.ShareQuota{}).WithObjects(objects...).Build()
}

func newLedger(c client.Client) *Ledger { return New(c, c, published{}, ours) }

func quotaOf(name, memory string, shares int64) *v1alpha1.ShareQuota {
	quota := &v1alpha1.ShareQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Spec: v1alpha1.ShareQuotaSpec{Hard: &v1alpha1.HardLimits{}}}
	if memory != "" {
		quota.Spec.Hard.Memory = ptr.To(resource.MustParse(memory))
	}
	if shares != 0 {
		quota.Spec.Hard.Shares = &shares
	}
	return quota
}

func claimOf(name, memory string) *resourceapi.ResourceClaim {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: "share.gpu.aliquot.dev", Count: 1}
	if memory != "" {
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}}
	}
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID("uid-" + name)},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exactly}}}},
	}
}

func statusOf(t *testing.T, c client.Client, name string) v1alpha1.ShareQuotaStatus {
	t.Helper()
	var quota v1alpha1.ShareQuota
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: name}, &quota); err != nil {
		t.Fatal(err)
	}
	return quota.Status
}

func mustReserve(t *testing.T, l *Ledger, claim *resourceapi.ResourceClaim) {
	t.Helper()
	if err := l.Reserve(t.Context(), claim, false); err != nil {
		t.Fatal(err)
	}
}

func wantUsed(t *testing.T, c client.Client, name, memory string, shares int64, reservations int) {
	t.Helper()
	status := statusOf(t, c, name)
	if status.Used == nil {
		t.Fatal("nothing is counted")
	}
	if want := resource.MustParse(memory); status.Used.Memory.Cmp(want) != 0 || status.Used.Shares != shares || len(status.Reservations) != reservations {
		t.Errorf("used are %s and %d shares with %d reservations, want %s, %d and %d",
			status.Used.Memory.String(), status.Used.Shares, len(status.Reservations), memory, shares, reservations)
	}
}

func wantRefusal(t *testing.T, err error, want string) {
	t.Helper()
	var refusal Refusal
	if !errors.As(err, &refusal) || refusal.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestReserve(t *testing.T) {
	c := store(t, quotaOf("team-a", "100Gi", 0), claimOf("old", "90Gi"))
	l := newLedger(c)
	mustReserve(t, l, claimOf("a", "6Gi"))
	wantUsed(t, c, "team-a", "96Gi", 2, 1)
	mustReserve(t, l, claimOf("a", "6Gi")) // the webhook is called again
	wantUsed(t, c, "team-a", "96Gi", 2, 1)
	wantRefusal(t, l.Reserve(t.Context(), claimOf("b", "8Gi"), false),
		`namespace team-a would use 104Gi of GPU memory, ShareQuota "team-a" allows 100Gi (96Gi are used): ask for less, or free a share`)
	wantRefusal(t, l.Reserve(t.Context(), claimOf("b", "8Gi"), true),
		`namespace team-a would use 104Gi of GPU memory, ShareQuota "team-a" allows 100Gi (96Gi are used): ask for less, or free a share`)
	wantRefusal(t, l.Reserve(t.Context(), claimOf("b", "101Gi"), false),
		`asks for 101Gi of GPU memory, ShareQuota "team-a" allows 100Gi in all of namespace team-a: ask for less`)
	if err := l.Reserve(t.Context(), claimOf("b", "4Gi"), true); err != nil {
		t.Errorf("a dry run that fits: %v", err)
	}
	wantUsed(t, c, "team-a", "96Gi", 2, 1) // a dry run and refusals reserve nothing
	mustReserve(t, l, claimOf("b", "4Gi"))
	wantUsed(t, c, "team-a", "100Gi", 3, 2)
}

func TestReserveOfAllLimits(t *testing.T) {
	quota := quotaOf("limits", "8Gi", 2)
	quota.Spec.Hard.Cores = ptr.To[int64](50)
	c := store(t, quota, claimOf("old", "4Gi"))
	claim := claimOf("a", "4Gi")
	claim.Spec.Devices.Requests[0].Exactly.Capacity.Requests["cores"] = resource.MustParse("30")
	claim.Spec.Devices.Requests[0].Exactly.Count = 2
	wantRefusal(t, newLedger(c).Reserve(t.Context(), claim, false),
		`asks for 60 cores (percent of a GPU), ShareQuota "limits" allows 50 in all of namespace team-a: ask for less`)
	claim.Spec.Devices.Requests[0].Exactly.Capacity.Requests["cores"] = resource.MustParse("20")
	wantRefusal(t, newLedger(c).Reserve(t.Context(), claim, false),
		`namespace team-a would use 12Gi of GPU memory, ShareQuota "limits" allows 8Gi (4Gi are used), and 3 shares of GPUs, ShareQuota "limits" allows 2 (1 are used): ask for less, or free a share`)
}

// What the status says may be older than the claims that are gone.
func TestReserveCountsAnewBeforeItRefuses(t *testing.T) {
	old := claimOf("old", "10Gi")
	c := store(t, quotaOf("team-a", "10Gi", 0), old)
	l := newLedger(c)
	if err := l.Reserve(t.Context(), claimOf("a", "10Gi"), false); err == nil {
		t.Fatal("let in beside a claim that has all")
	}
	if err := c.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	mustReserve(t, l, claimOf("a", "10Gi"))
	wantUsed(t, c, "team-a", "10Gi", 1, 1)
}

func TestReserveInEveryQuota(t *testing.T) {
	c := store(t, quotaOf("a", "100Gi", 0), quotaOf("b", "", 1), quotaOf("c", "100Gi", 0))
	l := newLedger(c)
	mustReserve(t, l, claimOf("first", "10Gi"))
	wantRefusal(t, l.Reserve(t.Context(), claimOf("second", "10Gi"), false),
		`namespace team-a would use 2 shares of GPUs, ShareQuota "b" allows 1 (1 are used): ask for less, or free a share`)
	for _, name := range []string{"a", "b", "c"} {
		wantUsed(t, c, name, "10Gi", 1, 1)
	}
}

// Two claims of one name are never stored together, so a create that is tried again counts once.
func TestReserveOfOneNameCountsOnce(t *testing.T) {
	c := store(t, quotaOf("team-a", "10Gi", 0))
	l := newLedger(c)
	for i, memory := range []string{"4Gi", "6Gi", "2Gi"} {
		claim := claimOf("again", memory)
		claim.UID = types.UID(fmt.Sprint("try-", i))
		mustReserve(t, l, claim)
	}
	wantUsed(t, c, "team-a", "6Gi", 1, 3)
}

func TestReserveWithoutLimits(t *testing.T) {
	only := quotaOf("largest", "", 0)
	only.Spec.Hard = nil
	elsewhere := quotaOf("elsewhere", "1Gi", 0)
	elsewhere.Namespace = "team-b"
	c := store(t, only, elsewhere)
	mustReserve(t, newLedger(c), claimOf("a", "80Gi"))
	if status := statusOf(t, c, "largest"); status.Used != nil {
		t.Errorf("counted %v where nothing is limited", status.Used)
	}
	foreign := claimOf("nic", "80Gi")
	foreign.Spec.Devices.Requests[0].Exactly.DeviceClassName = "nic.example.com"
	c = store(t, quotaOf("team-a", "1Gi", 0))
	mustReserve(t, newLedger(c), foreign)
	if status := statusOf(t, c, "team-a"); status.Used != nil {
		t.Error("a claim of another driver was counted")
	}
}

// A large cluster has a hundred thousand devices.
func TestDevicesAreOnlyLookedAtForLimits(t *testing.T) {
	c := store(t, quotaOf("team-a", "80Gi", 0))
	l := New(c, c, nobody{}, ours)
	elsewhere := claimOf("a", "80Gi")
	elsewhere.Namespace = "team-b"
	mustReserve(t, l, elsewhere)
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b"}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: elsewhere.Spec}}
	if err := l.Fits(t.Context(), template); err != nil {
		t.Error(err)
	}
	if err := l.Reserve(t.Context(), claimOf("a", "80Gi"), false); err == nil {
		t.Error("nobody looked at the devices")
	}
}

// nobody knows of devices.
type nobody struct{}

func (nobody) Slices(context.Context) ([]resourceapi.ResourceSlice, error) {
	return nil, errors.New("asked for devices")
}

// Reservations that were seen are looked for when there are many, even if no leader does.
func TestReserveClearsACrowd(t *testing.T) {
	c := store(t, quotaOf("team-a", "1Ti", 0))
	l := newLedger(c)
	for i := range crowd + 1 {
		claim := claimOf(fmt.Sprint("claim-", i), "1Gi")
		mustReserve(t, l, claim)
		if err := c.Create(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}
	wantUsed(t, c, "team-a", "101Gi", 101, 1)
}

func TestReserveWhenTheAPIServerFails(t *testing.T) {
	broken := errors.New("etcd is away")
	gone := apierrors.NewNotFound(schema.GroupResource{}, "team-a")
	for name, tc := range map[string]struct{ err, want error }{"it fails": {broken, broken}, "the quota is gone": {gone, nil}} {
		t.Run(name, func(t *testing.T) {
			c := interceptor.NewClient(store(t, quotaOf("team-a", "10Gi", 0)), interceptor.Funcs{
				SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
					return tc.err
				},
			})
			err := newLedger(c).Reserve(t.Context(), claimOf("a", "1Gi"), false)
			var refusal Refusal
			if !errors.Is(err, tc.want) || errors.As(err, &refusal) {
				t.Errorf("got %v, want %v and no refusal", err, tc.want)
			}
		})
	}
}

// A claim that never gets its turn is refused in the end, with an error that says to try again.
func TestReserveGivesUp(t *testing.T) {
	c := interceptor.NewClient(store(t, quotaOf("team-a", "10Gi", 0)), interceptor.Funcs{
		SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
			return apierrors.NewConflict(schema.GroupResource{}, "team-a", errors.New("another was first"))
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantRefusal(t, newLedger(c).Reserve(ctx, claimOf("a", "1Gi"), false), "too many claims of namespace team-a are being created at once to count them: try again")
}

func TestFits(t *testing.T) {
	c := store(t, quotaOf("team-a", "100Gi", 0), claimOf("old", "90Gi"))
	template := func(memory string) *resourceapi.ResourceClaimTemplate {
		return &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a"}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claimOf("a", memory).Spec}}
	}
	if err := newLedger(c).Fits(t.Context(), template("100Gi")); err != nil {
		t.Errorf("a template that may run later: %v", err)
	}
	wantRefusal(t, newLedger(c).Fits(t.Context(), template("101Gi")), `asks for 101Gi of GPU memory, ShareQuota "team-a" allows 100Gi in all of namespace team-a: ask for less`)
}

// lagging is a client whose cache is as it was when it was made.
type lagging struct {
	client.Client
	old client.Reader
}

func (l lagging) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return l.old.Get(ctx, key, o, opts...)
}

func (l lagging) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return l.old.List(ctx, list, opts...)
}

// Of many claims that come at once to two replicas, whose caches never learn of any, just those pass that fit.
func TestReserveAtOnce(t *testing.T) {
	const claims, fit = 60, 7
	c := store(t, quotaOf("team-a", "21Gi", 0), quotaOf("other", "1Ti", 0))
	replicas := make([]*Ledger, 2)
	for i := range replicas {
		replicas[i] = New(lagging{c, store(t, quotaOf("team-a", "21Gi", 0), quotaOf("other", "1Ti", 0))}, c, published{}, ours)
	}
	var wait sync.WaitGroup
	errs := make([]error, claims)
	start := make(chan struct{})
	for i := range claims {
		wait.Go(func() {
			<-start
			claim := claimOf(fmt.Sprint("claim-", i), "3Gi")
			if errs[i] = replicas[i%2].Reserve(t.Context(), claim, false); errs[i] == nil {
				errs[i] = c.Create(t.Context(), claim)
			}
		})
	}
	close(start)
	wait.Wait()
	passed := 0
	for _, err := range errs {
		if err == nil {
			passed++
		} else if !strings.Contains(err.Error(), `would use 24Gi of GPU memory, ShareQuota "team-a" allows 21Gi (21Gi are used)`) {
			t.Error(err)
		}
	}
	if passed != fit {
		t.Errorf("%d claims passed, want %d", passed, fit)
	}
	for _, name := range []string{"team-a", "other"} {
		status := statusOf(t, c, name)
		if status.Used.Memory.Value() != 21*gi {
			t.Errorf("ShareQuota %s: %s are used, want 21Gi", name, status.Used.Memory.String())
		}
	}
}
