package offload

// attempts is how often a kind of packet is tried before it counts as lost.
const attempts = 3

// verdict is the result of the measurement of a tunnel.
type verdict int

const (
	unknown verdict = iota // nobody answers
	works
	broken
)

// measure returns whether packets to a node get there whose checksum is left to the hardware, given a function that
// reports the answer to a packet with such a checksum, or one of the kernel's. They are lost only if the others are
// answered before and after it: a node that does not answer says nothing. The error is about this host.
func measure(ask func(offload bool) (bool, error)) (verdict, error) {
	for _, step := range []struct {
		offload   bool
		ifAnswers verdict // unknown: go on
	}{
		{offload: true, ifAnswers: works},
		{offload: false},
		{offload: true, ifAnswers: works}, // it was lost for another reason
		{offload: false, ifAnswers: broken},
	} {
		ok := false
		for n := 0; n < attempts && !ok; n++ {
			var err error
			if ok, err = ask(step.offload); err != nil {
				return unknown, err
			}
		}
		switch {
		case ok && step.ifAnswers != unknown:
			return step.ifAnswers, nil
		case !ok && !step.offload:
			return unknown, nil
		}
	}
	return unknown, nil
}
