package flowlog

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func drop(source string, at time.Time) Entry {
	return Entry{Time: at, Action: Dropped, Rule: "end of tier default", Source: netip.MustParseAddr(source),
		Destination: netip.MustParseAddr("10.0.0.2"),
		Protocol:    "tcp", DestinationPort: 80}
}

func TestAFlowIsToldOnceAndThenCounted(t *testing.T) {
	r, now := newRecorder(10), time.Unix(1000, 0)
	if reports := r.add(drop("10.0.0.1", now)); len(reports) != 1 || reports[0].Packets != 1 {
		t.Fatal(reports)
	}
	for range 41 {
		if reports := r.add(drop("10.0.0.1", now)); reports != nil {
			t.Fatal(reports)
		}
	}
	if reports := r.tick(now.Add(9 * time.Second)); reports != nil {
		t.Fatal(reports)
	}
	if reports := r.tick(now.Add(10 * time.Second)); len(reports) != 1 || reports[0].Packets != 41 {
		t.Fatal(reports)
	}
	if reports := r.tick(now.Add(20 * time.Second)); reports != nil || len(r.flows) != 0 {
		t.Fatal("a flow that ended is remembered", reports)
	}
}

func TestNoMoreThanTheRateIsTold(t *testing.T) {
	r, now := newRecorder(5), time.Unix(1000, 0)
	reports := 0
	for i := range 100 {
		reports += len(r.add(drop(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}).String(), now)))
	}
	if reports != 5 {
		t.Fatalf("%d reports", reports)
	}
	later := r.add(drop("10.2.0.1", now.Add(time.Second)))
	if len(later) != 1 || later[0].Suppressed != 95 {
		t.Fatal(later)
	}
}

func TestSubscribersGetWhatTheirFilterChooses(t *testing.T) {
	var lines strings.Builder
	h := NewHub(100, &lines, func(iface string) string {
		return map[string]string{"cali1": "shop/web"}[iface]
	})
	all, stop := h.Subscribe(Filter{})
	defer stop()
	some, stopSome := h.Subscribe(Filter{Net: netip.MustParsePrefix("10.9.0.0/16"), Port: 80, Rule: "tier default",
		Action: Dropped})
	defer stopSome()
	onlyLogged, stopLogged := h.Subscribe(Filter{Action: Logged})
	defer stopLogged()
	h.Add(drop("10.0.0.1", time.Unix(1000, 0)))
	h.Add(drop("10.9.0.1", time.Unix(1000, 0)))
	logged := drop("10.9.0.1", time.Unix(1000, 0)) // not the same as a dropped one
	logged.Action = Logged
	h.Add(logged)
	if len(all) != 3 || len(some) != 1 || len(onlyLogged) != 1 {
		t.Fatal(len(all), len(some), len(onlyLogged))
	}
	want := `{"time":"1970-01-01T00:16:40Z","action":"drop","rule":"end of tier default","source":"10.0.0.1","destination":"10.0.0.2","protocol":"tcp","destinationPort":80,"packets":1}`
	got, _, _ := strings.Cut(lines.String(), "\n")
	if got = strings.Replace(got, time.Unix(1000, 0).Format(time.RFC3339), "1970-01-01T00:16:40Z", 1); got != want {
		t.Fatal(got)
	}
}
