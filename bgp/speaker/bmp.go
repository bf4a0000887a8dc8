package speaker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/osrg/gobgp/v4/api"
)

// BMP is a collector that receives sessions and routes (RFC 7854). GoBGP keeps connecting to it, at most 30 s apart.
type BMP struct {
	Collector netip.AddrPort
	Policy    BMPPolicy
	SysName   string
	SysDescr  string
}

// BMPPolicy selects the routes that a collector receives.
type BMPPolicy string

const (
	bmpPrePolicy  BMPPolicy = "pre-policy"  // as received (RFC 7854 section 5)
	bmpPostPolicy BMPPolicy = "post-policy" // as accepted by import filters
	bmpLocalRIB   BMPPolicy = "local-rib"   // as chosen (RFC 9069)
	bmpAll        BMPPolicy = "all"
)

var bmpPolicies = map[BMPPolicy]api.AddBmpRequest_MonitoringPolicy{
	bmpPrePolicy:  api.AddBmpRequest_MONITORING_POLICY_PRE,
	bmpPostPolicy: api.AddBmpRequest_MONITORING_POLICY_POST,
	bmpLocalRIB:   api.AddBmpRequest_MONITORING_POLICY_LOCAL,
	bmpAll:        api.AddBmpRequest_MONITORING_POLICY_ALL,
}

// ParseBMPPolicy reads a policy.
func ParseBMPPolicy(text string) (BMPPolicy, error) {
	if _, ok := bmpPolicies[BMPPolicy(text)]; !ok {
		return "", fmt.Errorf("%q: want %s, %s, %s or %s", text, bmpPrePolicy, bmpPostPolicy, bmpLocalRIB, bmpAll)
	}
	return BMPPolicy(text), nil
}

// bmpStatisticsSeconds is the time between two statistics reports (RFC 7854 section 4.8).
const bmpStatisticsSeconds = 60

func (r *speakerRun) startBMP(ctx context.Context) error {
	var errs []error
	for _, b := range r.sp.cfg.BMP {
		err := r.srv.AddBmp(ctx, &api.AddBmpRequest{
			Address: b.Collector.Addr().String(), Port: uint32(b.Collector.Port()), Policy: bmpPolicies[b.Policy],
			StatisticsTimeout: bmpStatisticsSeconds, SysName: b.SysName, SysDescr: b.SysDescr,
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("bgp speaker: BMP collector %s: %w", b.Collector, err))
		}
	}
	return errors.Join(errs...)
}
