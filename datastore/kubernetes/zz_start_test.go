package kubernetes

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

func cpuNow() time.Duration {
	var ru syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func TestZZStart(t *testing.T) {
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(256 << 20)
	b, _ := os.ReadFile("/tmp/scale_hold")
	f := strings.Fields(string(b))
	r := &rest.Config{Host: f[0], BearerToken: f[3], QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAFile: f[2] + "/ca.crt", ServerName: "localhost"}}
	sizes := [][]model.Kind{{model.KindWorkloadEndpoint}, {model.KindNode, model.KindNamespace, model.KindServiceAccount, model.KindKubernetesNetworkPolicy, model.KindService, model.KindEndpointSlice, model.KindIPAMBlock, model.KindBlockAffinity, model.KindIPPool, model.KindFelixConfiguration, model.KindBGPConfiguration}}
	for _, kinds := range append(sizes, append(append([]model.Kind{}, sizes[0]...), sizes[1]...)) {
		t0, c0 := time.Now(), cpuNow()
		s, err := OpenREST(t.Context(), Config{}, r, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		tables := datastore.NewTables(zap.NewNop(), "node-0")
		ctx, cancel := context.WithCancel(t.Context())
		go tables.Run(ctx, s, kinds...)
		if _, err := tables.WaitInSync(ctx); err != nil {
			t.Fatal(err)
		}
		fmt.Println(len(kinds), "in sync", time.Since(t0), "cpu", cpuNow()-c0, tables.Status().Objects)
		runtime.GC()
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		raw, _ := os.ReadFile("/proc/self/status")
		for l := range strings.Lines(string(raw)) {
			if strings.HasPrefix(l, "VmRSS") || strings.HasPrefix(l, "VmHWM") {
				fmt.Print(l)
			}
		}
		fmt.Println("heap MB", m.HeapAlloc>>20, "inuse", m.HeapInuse>>20, "objects", m.HeapObjects)
		cancel()
		s.Close()
	}
}
