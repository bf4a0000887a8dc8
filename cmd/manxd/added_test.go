package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
)

// beacon is a part with everything that a part can have: readiness, a notice, a metric, a watched kind and a gRPC
// service.
type beacon struct {
	deps.Deps
	prometheus.Collector
	broken chan struct{}
}

func newBeacon(d deps.Deps) *beacon {
	b := &beacon{Deps: d, broken: make(chan struct{})}
	b.Collector = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "manx_beacon_lit", Help: "Always 1."},
		func() float64 { return 1 })
	return b
}

func (b *beacon) Name() string         { return "beacon" }
func (b *beacon) Needs() part.Needs    { return part.AllOf(model.KindIPReservation) }
func (b *beacon) Ready() server.Check  { return server.Check{Name: "beacon", OK: true, Reason: "lit"} }
func (b *beacon) Explain(error) string { return "out, lit again soon" }

func (b *beacon) Notices() []server.Notice {
	return []server.Notice{{Topic: "daemon", Subject: "beacon", Text: "can be seen from afar"}}
}

func (b *beacon) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-b.broken:
		return errors.New("broken")
	}
}

const (
	beaconLight   = "/manx.test.Beacon/Light"
	beaconBreak   = "/manx.test.Beacon/Break"
	beaconExplode = "/manx.test.Beacon/Explode" // has no role
)

func (b *beacon) Roles() map[string]server.Role {
	return map[string]server.Role{beaconLight: server.RoleRead, beaconBreak: server.RoleAdmin}
}

func (b *beacon) Register(r grpc.ServiceRegistrar) {
	method := func(name string, reply func() string) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(_ any, _ context.Context, read func(any) error,
			_ grpc.UnaryServerInterceptor) (any, error) {
			if err := read(new(emptypb.Empty)); err != nil {
				return nil, err
			}
			return wrapperspb.String(reply()), nil
		}}
	}
	methods := []grpc.MethodDesc{
		method("Light", b.reservations),
		method("Break", func() string { close(b.broken); return "" }),
		method("Explode", func() string { return "" }),
	}
	r.RegisterService(&grpc.ServiceDesc{ServiceName: "manx.test.Beacon", HandlerType: (*any)(nil), Methods: methods}, b)
}

// reservations returns the names of the IPReservations in the tables.
func (b *beacon) reservations() string {
	var names []string
	for o := range b.Tables.Snapshot().All(model.KindIPReservation) {
		names = append(names, o.Key.Name)
	}
	return strings.Join(names, " ")
}

// One line adds a part to the daemon. Its readiness, notice, metric and service are in the usual places.
func TestAddedPart(t *testing.T) {
	if os.Getenv("MANX_TEST_ADDED_PART") == "" {
		runInNamespaces(t, "MANX_TEST_ADDED_PART")
		return
	}
	dir, began := t.TempDir(), make(chan deps.Deps, 1)
	d := daemonForTest(t, dir)
	d.added = func(j deps.Deps) []part.Part {
		began <- j
		return []part.Part{newBeacon(j)}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.run(ctx) }()
	j := <-began
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "run", "manxd.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	w := operator{t, conn}
	w.await("readyz", func() string { return get("/readyz?verbose") }, "[+]beacon: lit", "[+]datastore:", "[+]policy:")
	w.await("metrics", func() string { return get("/metrics") }, "manx_beacon_lit 1", `manx_ready{check="beacon"} 1`)
	w.await("health", w.health, "is SERVING")
	w.await("notices", w.notices, "beacon: can be seen from afar")

	reservation := model.NewObject(model.ResourceKey(model.KindIPReservation, "kept"), new(v3.IPReservation))
	if _, err := j.Store.Create(ctx, reservation); err != nil {
		t.Fatal(err)
	}
	w.await("the call", func() string { return w.call(beaconLight) }, "kept")
	w.await("a call without a role", func() string { return w.call(beaconExplode) }, codes.PermissionDenied.String())
	w.await("an unknown call", func() string { return w.call("/manx.test.Beacon/None") }, codes.Unimplemented.String())

	w.call(beaconBreak)
	w.await("readyz of a part that is down", func() string { return get("/readyz") }, "[-]beacon: out, lit again soon")
	w.await("notices of a part that is down", w.notices, "beacon: out, lit again soon", "can be seen from afar")

	cancel()
	if err := <-ended; err != nil {
		t.Errorf("end: %v", err)
	}
}

// A closed store is not opened again: the daemon ends, with the reason.
func TestClosedStoreEndsTheDaemon(t *testing.T) {
	if os.Getenv("MANX_TEST_CLOSED_STORE") == "" {
		runInNamespaces(t, "MANX_TEST_CLOSED_STORE")
		return
	}
	d := daemonForTest(t, t.TempDir())
	d.added = func(j deps.Deps) []part.Part {
		go func() {
			if _, err := j.Tables.WaitInSync(t.Context()); err == nil {
				_ = j.Store.Close()
			}
		}()
		return nil
	}
	if err := d.run(t.Context()); err == nil || !strings.Contains(err.Error(), "the store was closed") {
		t.Errorf("the daemon ended with %v", err)
	}
}

// call calls a method of the beacon. It returns the text of the response, or the code of the error.
func (o operator) call(method string) string {
	response := new(wrapperspb.StringValue)
	if err := o.conn.Invoke(o.t.Context(), method, new(emptypb.Empty), response); err != nil {
		return status.Code(err).String()
	}
	return response.GetValue()
}

func (o operator) health() string {
	r, err := grpc_health_v1.NewHealthClient(o.conn).Check(o.t.Context(),
		&grpc_health_v1.HealthCheckRequest{Service: "beacon"})
	return fmt.Sprintf("is %s %v", r.GetStatus(), err)
}
