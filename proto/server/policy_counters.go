package server

import "go.uber.org/zap"

const metricDropped = "manx_dropped_packets_total"

var policyCounters = describe([]description{
	{metricDropped, "Packets that the rules dropped or rejected, by reason.", []string{"reason"}},
})

// collectCounters sends nothing if the kernel does not answer: a wrong zero would look as if it counted anew.
func (v *PolicyView) collectCounters(agent Policy, counter metricFunc) {
	dropped, err := agent.Dropped()
	if err != nil {
		v.log.Debug("the packets that were dropped are not known", zap.Error(err))
		return
	}
	for why, n := range dropped {
		counter(metricDropped, float64(n), string(why))
	}
}
