package gobgpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/integration/ports"
	"github.com/manxnet/manx/integration/stock"
)

const secret = "not-to-be-seen" // of the session

// scene is a speaker with a session to BIRD for each family, and its API.
type scene struct {
	speaker *speaker.Speaker
	desired bgp.Desired
	port    string // of the v3 API
	socket  string // of GoBGP's own
	peer4   netip.Addr
	peer6   netip.Addr
}

func newScene(t *testing.T) *scene {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("BIRD and addresses on the loopback interface need root")
	}
	for _, program := range []string{"bird", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	dir := t.TempDir()
	own6, peer6 := loopback6(t, 1), loopback6(t, 2)
	own4, peer4 := netip.MustParseAddr("127.0.77.1"), netip.MustParseAddr("127.0.77.2")
	listen, remote := ports.Free(t, "127.0.77.1"), ports.Free(t, "127.0.77.1")
	startBird(t, dir, fmt.Sprintf(birdConfig, remote, own4, listen, secret, peer6, remote, own6, listen))
	s := &scene{socket: filepath.Join(dir, "gobgp.sock"), peer4: peer4, peer6: peer6}
	s.speaker = speaker.New(speaker.Config{GobgpSocket: s.socket, ConnectRetry: time.Second})
	t.Cleanup(s.speaker.Close)
	session := func(peer, own netip.Addr, password string) bgp.Session {
		return bgp.Session{Address: peer, Port: remote, Type: bgp.SessionGlobal, LocalAS: 64512, PeerAS: 64513,
			Source: own, Password: password}
	}
	s.desired = bgp.Desired{
		Global: bgp.Global{LocalAS: 64512, RouterID: netip.MustParseAddr("192.0.2.1"), ListenPort: listen,
			ListenAddresses: []netip.Addr{own4, own6}},
		Sessions:       []bgp.Session{session(peer4, own4, secret), session(peer6, own6, "")},
		ExportPrefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		Originated: []bgp.Origin{
			{Prefix: netip.MustParsePrefix("10.244.0.0/26"), LocalPref: 100, Communities: []uint32{64512<<16 | 9},
				LargeCommunities: [][3]uint32{{64512, 1, 2}}},
			{Prefix: netip.MustParsePrefix("fd00:244::/122"), LocalPref: 100},
		},
	}
	s.port = serve(t, New(s.speaker, zap.NewNop()))
	return s
}

const birdConfig = `
router id 192.0.2.2;
protocol device { }
protocol static v4 { ipv4; route 10.88.1.0/24 blackhole; route 10.88.2.0/24 blackhole { bgp_community.add((64513,42)); bgp_ext_community.add((rt,64513,5)); }; route 10.9.0.0/16 blackhole; }
protocol static v6 { ipv6; route fd00:88:1::/64 blackhole; }
protocol bgp manx4 {
  local 127.0.77.2 port %d as 64513; neighbor %s port %d as 64512; multihop; passive yes; password "%s"; graceful restart on;
  ipv4 { import all; next hop self; export filter { if source != RTS_STATIC then reject; if net = 10.88.2.0/24 then bgp_med = 7; accept; }; };
}
protocol bgp manx6 {
  local %s port %d as 64513; neighbor %s port %d as 64512; multihop; passive yes; graceful restart on;
  ipv6 { import all; export where source = RTS_STATIC; next hop self; };
}
`

func loopback6(t *testing.T, n int) netip.Addr {
	t.Helper()
	a := fmt.Sprintf("fd99:%x::%d", os.Getpid()&0xffff, n)
	if out, err := exec.Command("ip", "addr", "add", a+"/128", "dev", "lo", "nodad").CombinedOutput(); err != nil {
		t.Fatalf("ip addr add %s: %v: %s", a, err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "addr", "del", a+"/128", "dev", "lo").Run() })
	return netip.MustParseAddr(a)
}

func startBird(t *testing.T, dir, config string) {
	t.Helper()
	file := filepath.Join(dir, "bird.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bird", "-f", "-c", file, "-s", filepath.Join(dir, "bird.ctl"), "-P",
		filepath.Join(dir, "bird.pid"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// serve runs the API on a loopback port, which it returns.
func serve(t *testing.T, s *Service) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	s.Register(g)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}

// start brings BGP up and waits until BIRD's routes are here.
func (s *scene) start(t *testing.T) {
	t.Helper()
	if err := s.speaker.Set(context.Background(), s.desired); err != nil {
		t.Fatal(err)
	}
	s.await(t)
}

// await waits until both sessions are up and all of BIRD's routes are here.
func (s *scene) await(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		v4, _ := s.speaker.Session(s.peer4)
		v6, _ := s.speaker.Session(s.peer6)
		if v4.Counters.Received == 3 && v6.Counters.Received == 1 && v4.Counters.Advertised == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not all routes came: %+v", s.speaker.Sessions())
		}
	}
}

// cli is one release of the gobgp command with the arguments for its API.
type cli struct {
	name    string
	program string
	args    []string
}

func (c cli) command(args ...string) *exec.Cmd {
	return exec.Command(c.program, append(append([]string{}, c.args...), args...)...)
}

// run returns the command's output. The password must never be in it.
func (c cli) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.command(args...).CombinedOutput()
	if err != nil {
		t.Errorf("gobgp %s: %v: %s", strings.Join(args, " "), err, out)
	}
	if strings.Contains(string(out), secret) {
		t.Errorf("gobgp %s shows the password", strings.Join(args, " "))
	}
	return string(out)
}

func (s *scene) clis(t *testing.T) []cli {
	t.Helper()
	var list []cli
	if p, err := stock.Gobgp3.Path(); err == nil {
		list = append(list, cli{"v3.37", p, []string{"-p", s.port}})
	} else {
		t.Log(err)
	}
	if p, err := exec.LookPath("gobgp"); err == nil {
		list = append(list, cli{"Debian", p, []string{"-p", s.port}})
	}
	if p, err := stock.Gobgp4.Path(); err == nil {
		list = append(list, cli{"v4.8", p, []string{"--target", "unix://" + s.socket}})
	} else {
		t.Log(err)
	}
	if len(list) == 0 {
		t.Skip("there is no gobgp command: Debian's package gobgpd is not installed, and the others cannot be built")
	}
	return list
}

// matches fails unless text matches all expressions, each in one line.
func matches(t *testing.T, what, text string, expressions ...string) {
	t.Helper()
	for _, e := range expressions {
		if !regexp.MustCompile("(?m)" + e).MatchString(text) {
			t.Errorf("%s: %q is not in\n%s", what, e, text)
		}
	}
}

// TestGobgp shares one scene: it takes seconds until the sessions are up.
func TestGobgp(t *testing.T) {
	s := newScene(t)
	clis := s.clis(t)
	for _, c := range clis {
		if c.name == "v4.8" {
			continue // its socket does not exist yet
		}
		out, err := c.command("global").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "BGP is not running") {
			t.Errorf("%s before BGP runs: %v: %s", c.name, err, out)
		}
	}
	s.start(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, *scene, []cli)
	}{
		{"commands show what the speaker knows", testStockCommands},
		{"rib is sorted", testRibIsSorted},
		{"JSON output", testJSONOutput},
		{"mutations are refused", testMutationsAreRefused},
		{"monitor shows changes", testMonitorShowsChanges},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, s, clis) })
	}
}

func testStockCommands(t *testing.T, s *scene, clis []cli) {
	peer4, peer6 := s.peer4.String(), s.peer6.String()
	status, _ := s.speaker.Session(s.peer4)
	for _, c := range clis {
		t.Run(c.name, func(t *testing.T) {
			for _, x := range []struct {
				args string
				want []string
			}{
				{"neighbor", []string{
					fmt.Sprintf(`^%s +%d .*Establ +\| +%d +%d$`, regexp.QuoteMeta(peer4), status.PeerAS,
						status.Counters.Received, status.Counters.Accepted),
					`^` + regexp.QuoteMeta(peer6) + ` +64513 .*Establ +\| +1 +1$`,
				}},
				{"neighbor " + peer4, []string{
					`BGP neighbor is ` + peer4 + `, remote AS 64513`, `remote router ID ` +
						status.PeerRouterID.String(), `(?i)BGP state = (SESSION_STATE_)?ESTABLISHED, up for`,
					fmt.Sprintf(`Hold time is %d,`, int(status.HoldTime.Seconds())),
					`(?i)multiprotocol:`, `ipv4-unicast`, `(?i)graceful-restart`, `4-octet-as`, `Updates: +\d+ +[1-9]`,
					`Advertised: +1$`, `Received: +3$`, `Accepted: +3$`,
				}},
				{"neighbor " + peer4 + " adj-in", []string{
					`10\.88\.1\.0/24 +127\.0\.77\.2 +64513 `,
					`10\.88\.2\.0/24 +127\.0\.77\.2 +64513 .*Med: 7.*64513:42`, `64513:5`, `10\.9\.0\.0/16 `,
				}},
				{"neighbor " + peer4 + " adj-in 10.88.2.0/24", []string{`10\.88\.2\.0/24 `}},
				{"neighbor " + peer4 + " adj-out",
					[]string{`10\.244\.0\.0/26 +127\.0\.77\.1 +64512 .*64512:9.*64512:1:2`}},
				{"neighbor " + peer6 + " adj-in -a ipv6", []string{`fd00:88:1::/64 +` + peer6 + ` +64513 `}},
				{"neighbor " + peer6 + " adj-out -a ipv6",
					[]string{`fd00:244::/122 +` + s.desired.Sessions[1].Source.String() + ` +64512 `}},
				{"global", []string{`AS: +64512$`, `Router-ID: 192\.0\.2\.1$`,
					fmt.Sprintf(`Listening Port: %d, Addresses: 127\.0\.77\.1`, s.desired.Global.ListenPort)}},
				{"global rib", []string{`^\*> 10\.88\.1\.0/24 +127\.0\.77\.2 +64513 `,
					`^\*> 10\.244\.0\.0/26 +0\.0\.0\.0 `}},
				{"global rib 10.88.2.0/24", []string{`10\.88\.2\.0/24 .*Med: 7`}},
				{"global rib 10.88.2.1", []string{`10\.88\.2\.0/24 `}},
				{"global rib 10.88.0.0/16 longer-prefixes", []string{`10\.88\.1\.0/24`, `10\.88\.2\.0/24`}},
				{"global rib -a ipv6", []string{`^\*> fd00:88:1::/64 +` + peer6 + ` +64513 `,
					`^\*> fd00:244::/122 +:: `}},
				{"global rib summary", []string{`Destination: 4, Path: 4`}},
				{"global policy", []string{`(?i)export policy`, `manx-export`}},
				{"policy", []string{`manx-export`}},
				{"policy prefix", []string{`manx-export-v4`}},
				{"policy neighbor", []string{`manx-external`}},
				{"policy statement", []string{`(?i)StatementName`}},
			} {
				matches(t, x.args, c.run(t, strings.Fields(x.args)...), x.want...)
			}
			if c.name != "Debian" { // too old to show it
				matches(t, "neighbor X", c.run(t, "neighbor", peer4),
					`Local address is 127\.0\.77\.1, local ASN: 64512`)
			}
			for _, args := range []string{"vrf", "bmp", "rpki server", "neighbor " + peer4 + " softresetin",
				"neighbor " + peer4 + " softresetout"} {
				c.run(t, strings.Fields(args)...)
			}
		})
	}
}

func testRibIsSorted(t *testing.T, s *scene, clis []cli) {
	out := clis[0].run(t, "global", "rib")
	last := -1
	for _, p := range []string{"10.9.0.0/16", "10.88.1.0/24", "10.88.2.0/24", "10.244.0.0/26"} {
		i := strings.Index(out, p)
		if i < last {
			t.Errorf("%s is out of order in\n%s", p, out)
		}
		last = i
	}
}

func testJSONOutput(t *testing.T, s *scene, clis []cli) {
	for _, c := range clis {
		t.Run(c.name, func(t *testing.T) {
			var peers []struct {
				Conf  map[string]any `json:"conf"`
				State struct {
					Session  json.Number      `json:"session_state"`
					Local    json.Number      `json:"local_asn"`
					Messages map[string]any   `json:"messages"`
					Remote   []map[string]any `json:"remote_cap"`
				} `json:"state"`
				AfiSafis []struct {
					State struct {
						Received int `json:"received"`
					} `json:"state"`
				} `json:"afi_safis"`
			}
			decode(t, c.run(t, "-j", "neighbor"), &peers)
			if len(peers) != 2 {
				t.Fatalf("%d peers, want 2", len(peers))
			}
			for _, p := range peers {
				want := map[string]int{s.peer4.String(): 3, s.peer6.String(): 1}[fmt.Sprint(p.Conf["neighbor_address"])]
				if p.State.Session != "6" || p.State.Local != "64512" || len(p.State.Remote) < 3 ||
					len(p.AfiSafis) != 1 || p.AfiSafis[0].State.Received != want {
					t.Errorf("peer is %+v, want %d routes", p, want)
				}
			}
			rib := map[string]any{}
			decode(t, c.run(t, "-j", "global", "rib"), &rib)
			for _, prefix := range []string{"10.88.1.0/24", "10.88.2.0/24", "10.9.0.0/16", "10.244.0.0/26"} {
				if rib[prefix] == nil {
					t.Errorf("%s is missing in the rib %v", prefix, rib)
				}
			}
			if len(rib) != 4 {
				t.Errorf("rib has %d prefixes", len(rib))
			}
			in := map[string]any{}
			decode(t, c.run(t, "-j", "neighbor", s.peer4.String(), "adj-in"), &in)
			if len(in) != 3 {
				t.Errorf("adj-in is %v", in)
			}
		})
	}
}

func decode(t *testing.T, text string, to any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), to); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
}

func testMonitorShowsChanges(t *testing.T, s *scene, clis []cli) {
	for i, c := range clis {
		t.Run(c.name, func(t *testing.T) {
			neighbour := watchOutput(t, c, "monitor", "neighbor", s.peer4.String())
			rib := watchOutput(t, c, "monitor", "global", "rib", "--current")
			rib(`\[ROUTE\] 10\.88\.1\.0/24 via 127\.0\.77\.2 aspath \[64513\]`) // --current
			d := s.desired
			d.Originated = append([]bgp.Origin{{Prefix: netip.MustParsePrefix(fmt.Sprintf("10.245.%d.0/26", i)),
				LocalPref: 100}}, d.Originated...)
			if err := s.speaker.Set(context.Background(), d); err != nil {
				t.Fatal(err)
			}
			rib(fmt.Sprintf(`\[ROUTE\] 10\.245\.%d\.0/26`, i))
			if err := s.speaker.ResetSession(context.Background(), s.peer4, speaker.ResetHard); err != nil {
				t.Fatal(err)
			}
			// The session is in Idle only for a short time, and the command does not report when it begins to receive
			// events.
			neighbour(`\[NEIGH\] 127\.0\.77\.2 fsm: (SESSION_STATE_)?(IDLE|ACTIVE|OPENSENT|OPENCONFIRM)`)
			rib(`\[DELROUTE\] 10\.88\.1\.0/24`)
			neighbour(`\[NEIGH\] 127\.0\.77\.2 fsm: (SESSION_STATE_)?ESTABLISHED admin: (ADMIN_STATE_)?UP`)
			rib(`\[ROUTE\] 10\.88\.1\.0/24`)
		})
	}
}

// watchOutput runs a command that does not end, and returns a function that waits for a line.
func watchOutput(t *testing.T, c cli, args ...string) func(expression string) {
	t.Helper()
	cmd := c.command(args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			lines <- scan.Text()
		}
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return func(expression string) {
		t.Helper()
		wanted, deadline := regexp.MustCompile(expression), time.After(time.Minute)
		var seen []string
		for {
			select {
			case line, more := <-lines:
				if !more {
					t.Fatalf("gobgp %v ended; it printed %q", args, seen)
				}
				if seen = append(seen, line); wanted.MatchString(line) {
					return
				}
			case <-deadline:
				t.Fatalf("gobgp %v did not print %s, but %q", args, expression, seen)
			}
		}
	}
}

func testMutationsAreRefused(t *testing.T, s *scene, clis []cli) {
	before := s.speaker.Sessions()
	for _, c := range clis {
		t.Run(c.name, func(t *testing.T) {
			for _, args := range []string{
				"neighbor add 127.0.77.9 as 65000", "neighbor del " + s.peer4.String(), "neighbor " + s.peer4.String() +
					" disable", "neighbor " + s.peer4.String() + " shutdown",
				"global rib add 10.1.0.0/24", "global rib del 10.88.1.0/24", "global del all",
				"policy prefix add mine 10.0.0.0/8", "policy add mine", "global policy export add mine",
			} {
				out, err := c.command(strings.Fields(args)...).CombinedOutput()
				// Some commands first query an object and fail with their own message.
				if text := string(out); err == nil || !strings.Contains(text, "PermissionDenied") ||
					!strings.Contains(text, "refused") {
					t.Errorf("gobgp %s: %v: %s", args, err, out)
				} else if c.name != "v4.8" && !strings.Contains(text, "manxctl") && !strings.Contains(text, "manxd") {
					t.Errorf("gobgp %s does not name the alternative: %s", args, out)
				}
			}
			if c.name != "v4.8" {
				out, err := c.command("neighbor", s.peer4.String(), "reset").CombinedOutput()
				if err == nil || !strings.Contains(string(out), "PermissionDenied") {
					t.Errorf("hard reset: %v: %s", err, out)
				}
			}
		})
	}
	for i, now := range s.speaker.Sessions() {
		if now.State != "Established" || now.Flaps != before[i].Flaps || !now.Since.Equal(before[i].Since) {
			t.Errorf("session is %+v, was %+v", now, before[i])
		}
	}
}
