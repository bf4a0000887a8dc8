package speaker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp"
)

// GoBGP runs on while a table is listed, and no listing begins afterwards. The second path of the prefix has ListPath
// read a setting that StopBgp writes.
func TestServerStopsAfterItsReaders(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	peers := []string{"127.0.1.170", "127.0.1.171"}
	d.Sessions = []bgp.Session{passive(peers[0]), passive(peers[1])}
	mustSet(t, s, d)
	for i, a := range peers {
		p := dialFake(t, a, listenOf(d), fakeOptions{as: 64512, id: fmt.Sprintf("10.99.17.%d", 1+i)})
		awaitSession(t, s, a, "Established", established)
		p.send(update("10.0.0.17", 0, 100, pfx("10.17.0.0/24"), pfx("10.17.1.0/24")))
	}
	table := routeTable{}
	awaitRoutes(t, s, table, "both paths", func() bool { return len(table[pfx("10.17.1.0/24")].Paths) == 2 })

	run := s.current()
	inside, resume := make(chan bool), make(chan bool)
	listed := make(chan error, 1)
	go func() {
		first := true
		listed <- run.listPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL,
			Family: gobgp.RF_IPv4_UC}, func(gobgp.NLRI, []*apiutil.Path) {
			if first {
				first = false
				close(inside)
				<-resume
			}
		})
	}()
	<-inside
	stopped := make(chan bool)
	go func() {
		run.stop(context.Background())
		close(stopped)
	}()
	<-run.readers.closing
	for range 1000 {
		if _, err := run.srv.GetBgp(context.Background(), &api.GetBgpRequest{}); err != nil {
			t.Fatalf("the server stopped during a listing: %v", err)
		}
		runtime.Gosched()
	}
	late := make(chan error, 1)
	go func() {
		_, err := s.Table(false)
		late <- err
	}()
	close(resume)
	if err := <-listed; err != nil {
		t.Errorf("the listing under way: %v", err)
	}
	<-stopped
	if err := <-late; !errors.Is(err, ErrStopping) {
		t.Errorf("a listing after the stop: %v, want %v", err, ErrStopping)
	}
}

// Every method that lists routes ends when the server is about to stop, although GoBGP would still respond.
func TestEachReaderIsRefusedOnceTheServerStops(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "gobgp.sock")
	s, d := testSpeaker(t, Config{GobgpSocket: socket})
	const peer = "127.0.1.172"
	d.Sessions = []bgp.Session{passive(peer)}
	d.Originated = []bgp.Origin{{Prefix: pfx("10.17.2.0/24"), LocalPref: 100}}
	mustSet(t, s, d)
	p := dialFake(t, peer, listenOf(d), fakeOptions{as: 64512, id: "10.99.17.3"})
	awaitSession(t, s, peer, "Established", established)
	p.send(update("10.0.0.17", 0, 100, pfx("10.17.2.0/24"), pfx("10.17.3.0/24")))
	table := routeTable{}
	awaitRoutes(t, s, table, "the route", func() bool { return len(table) == 1 })
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	run := s.current()
	whole := apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: gobgp.RF_IPv4_UC}
	readers := map[string]func() error{
		"Table":        func() error { _, err := s.Table(false); return err },
		"ReceivedFrom": func() error { _, err := s.ReceivedFrom(ip(peer)); return err },
		"AdvertisedTo": func() error { _, err := s.AdvertisedTo(ip(peer)); return err },
		"ListPath":     func() error { return s.ListPath(run.srv, whole, func(gobgp.NLRI, []*apiutil.Path) {}) },
		"conflicts": func() error {
			if s.readConflicts(run) == nil {
				return ErrStopping
			}
			return nil
		},
		"gobgp.sock": func() error {
			stream, err := api.NewGoBgpServiceClient(conn).ListPath(t.Context(), &api.ListPathRequest{
				TableType: whole.TableType, Family: &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}})
			if err != nil {
				return err
			}
			if _, err = stream.Recv(); status.Code(err) == codes.Unavailable {
				return ErrStopping
			}
			return err
		},
	}
	for name, read := range readers {
		if err := read(); err != nil {
			t.Errorf("%s before: %v", name, err)
		}
	}
	run.readers.close()
	for name, read := range readers {
		if err := read(); !errors.Is(err, ErrStopping) {
			t.Errorf("%s: %v, want %v", name, err, ErrStopping)
		}
	}
}

// A caller of gobgp.sock that does not read its listing does not keep the server from stopping: its stream ends at
// once. This ends the waiting message, and so the listing.
func TestUnreadListingEndsWhereTheServerStops(t *testing.T) {
	t.Parallel()
	r := newReaders()
	waits, streamEnds := make(chan bool), make(chan bool)
	ended := make(chan error, 1)
	go func() {
		ended <- r.intercept(func(any, grpc.ServerStream) error {
			close(waits)
			<-streamEnds
			return nil
		})(nil, nil)
	}()
	<-waits
	closed := make(chan bool)
	go func() {
		r.close()
		close(closed)
	}()
	if err := <-ended; status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
	close(streamEnds)
	<-closed
	if err := r.intercept(func(any, grpc.ServerStream) error { return nil })(nil, nil); err == nil {
		t.Error("a listing began after the end")
	}
}
