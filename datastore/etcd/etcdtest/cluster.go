package etcdtest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/integration/ports"
)

// Cluster is an etcd cluster in this process. Its members reach each other through proxies, which can cut one off, and
// its clients through others, which can cut a connection in the middle of a request.
type Cluster struct {
	members   []*embed.Etcd
	endpoints []string // for clients
	peers     peers
	lines     lines
}

// electionTimeout is short, so that tests are, and long enough for a busy machine.
const electionTimeout = 300 * time.Millisecond

// StartCluster runs a cluster of so many members until the test ends.
func StartCluster(t testing.TB, size int) *Cluster {
	t.Helper()
	c := &Cluster{peers: peers{apart: -1, ids: make([]string, size), open: map[*http.Request]link{}},
		lines: lines{open: map[net.Conn]bool{}}}
	var configs []*embed.Config
	var all []string
	for i := range size {
		s := embed.NewConfig()
		s.Name, s.Dir, s.UnsafeNoFsync = fmt.Sprint("m", i), t.TempDir(), true
		s.TickMs, s.ElectionMs = uint(electionTimeout.Milliseconds())/10, uint(electionTimeout.Milliseconds())
		s.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		s.ListenClientUrls, s.ListenPeerUrls = freeURL(t), freeURL(t)
		s.AdvertiseClientUrls, s.AdvertisePeerUrls = s.ListenClientUrls, c.peers.proxy(t, i, &s.ListenPeerUrls[0])
		all = append(all, s.Name+"="+s.AdvertisePeerUrls[0].String())
		configs = append(configs, s)
		c.endpoints = append(c.endpoints, "http://"+c.lines.proxy(t, s.ListenClientUrls[0].Host))
	}
	t.Cleanup(func() { // the leader last: it would wait for one that takes over
		slices.SortFunc(c.members, func(a, b *embed.Etcd) int { return cmp.Compare(leads(a), leads(b)) })
		for _, e := range c.members {
			e.Server.HardStop() // requests of the time without a leader would end seconds later
			e.Close()
		}
	})
	for i, s := range configs {
		s.InitialCluster = strings.Join(all, ",")
		e, err := embed.StartEtcd(s)
		if err != nil {
			t.Fatal(err)
		}
		c.members = append(c.members, e)
		c.peers.know(i, e.Server.MemberID().String())
	}
	c.Heal(t)
	return c
}

func freeURL(t testing.TB) []url.URL {
	t.Helper()
	return []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports.Free(t, "127.0.0.1"))}}
}

// Config returns the client configuration of the cluster, with its members in order.
func (c *Cluster) Config() etcd.Config { return etcd.Config{Endpoints: c.endpoints} }

// Store opens a store that is closed when the test ends.
func (c *Cluster) Store(t testing.TB) *etcd.Store {
	t.Helper()
	store, err := etcd.Open(context.Background(), c.Config(), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// leads returns 1 for the leader.
func leads(e *embed.Etcd) int {
	if e.Server.Leader() == e.Server.MemberID() {
		return 1
	}
	return 0
}

// MoveLeader makes another member the leader: that with number i, or the next one. It returns at once.
func (c *Cluster) MoveLeader(ctx context.Context, i int) {
	for _, e := range c.members {
		if lead := e.Server.MemberID(); leads(e) == 1 {
			if c.members[i] == e {
				i = (i + 1) % len(c.members)
			}
			go func() {
				ctx, cancel := context.WithTimeout(ctx, electionTimeout)
				defer cancel()
				_ = e.Server.MoveLeader(ctx, uint64(lead), uint64(c.members[i].Server.MemberID()))
			}()
			return
		}
	}
}

// CutOff separates a member from the others, until Heal.
func (c *Cluster) CutOff(i int) { c.peers.isolate(i) }

// DropRequest closes the clients' connections when the next request comes, before it reaches a member.
func (c *Cluster) DropRequest() { c.lines.arm(dropRequest) }

// DropResponse closes the clients' connections when the next response comes, before it reaches a client.
func (c *Cluster) DropResponse() { c.lines.arm(dropResponse) }

// Heal ends what the other methods began, and returns when each member has written something. So what a client wrote
// through it before either has its effect now or has none.
func (c *Cluster) Heal(t testing.TB) {
	t.Helper()
	c.peers.isolate(-1)
	c.lines.arm(dropNothing)
	for i, e := range c.members {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Config().ListenClientUrls[0].String()},
			Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); ; {
			ctx, cancel := context.WithTimeout(t.Context(), electionTimeout)
			_, err := client.Put(ctx, "/test/heal", e.Config().Name)
			cancel()
			if err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("member %d does not write after the end of the partition: %v", i, err)
			}
			time.Sleep(electionTimeout / 10) // an error may come at once
		}
		client.Close()
	}
}

// peers are the connections of members to each other.
type peers struct {
	mu    sync.Mutex
	ids   []string // of the members, as their requests name them
	apart int      // the member that is cut off, -1 without one
	open  map[*http.Request]link
}

// link is a request from one member to another.
type link struct {
	from   string
	to     int
	cancel context.CancelFunc
}

func (p *peers) know(i int, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids[i] = id
}

// proxy returns the URL at which the others reach a member that listens at target.
func (p *peers) proxy(t testing.TB, to int, target *url.URL) []url.URL {
	t.Helper()
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.FlushInterval = -1
	forward.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		if !p.begin(r, to, cancel) {
			panic(http.ErrAbortHandler)
		}
		defer p.end(r)
		forward.ServeHTTP(w, r.WithContext(ctx))
	})}
	listener := listen(t)
	go s.Serve(listener)
	t.Cleanup(func() { s.Close() })
	return []url.URL{{Scheme: "http", Host: listener.Addr().String()}}
}

func (p *peers) begin(r *http.Request, to int, cancel context.CancelFunc) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := link{r.Header.Get("X-Server-From"), to, cancel}
	if p.crosses(l) {
		return false
	}
	p.open[r] = l
	return true
}

func (p *peers) end(r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, r)
}

// isolate cuts a member off, or none if i is -1.
func (p *peers) isolate(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.apart = i
	for _, l := range p.open {
		if p.crosses(l) {
			l.cancel()
		}
	}
}

// crosses reports whether a request goes to the member that is cut off, or comes from it.
func (p *peers) crosses(l link) bool {
	return p.apart >= 0 && (l.to == p.apart || l.from == p.ids[p.apart])
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// lines are the connections of clients.
type lines struct {
	mu   sync.Mutex
	drop drop
	open map[net.Conn]bool
}

// drop tells which data closes the connections.
type drop int

const (
	dropNothing drop = iota
	dropRequest
	dropResponse
)

func (l *lines) arm(d drop) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop = d
}

// proxy returns the address at which clients reach the target.
func (l *lines) proxy(t testing.TB, target string) string {
	t.Helper()
	listener := listen(t)
	t.Cleanup(func() {
		listener.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closeAll()
	})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			l.mu.Lock()
			l.open[client], l.open[server] = true, true
			l.mu.Unlock()
			go l.pipe(server, client, dropRequest)
			go l.pipe(client, server, dropResponse)
		}
	}()
	return listener.Addr().String()
}

// pipe copies one direction.
func (l *lines) pipe(to, from net.Conn, direction drop) {
	defer l.close(to, from)
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil || l.dropped(direction) {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// dropped reports whether data of this direction is the one to drop, and closes all connections then.
func (l *lines) dropped(direction drop) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.drop != direction {
		return false
	}
	l.drop = dropNothing
	l.closeAll()
	return true
}

func (l *lines) closeAll() {
	for c := range l.open {
		c.Close()
	}
	clear(l.open)
}

func (l *lines) close(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		c.Close()
		delete(l.open, c)
	}
}
