package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// batch is one transaction of nf_tables as it goes to the kernel.
type batch struct {
	netlink.Builder
	ops   []operation // of the messages, from the first after the begin of the batch
	check bool        // nothing is to be changed
}

// operation is the request in a message of a batch.
type operation struct {
	verb, kind, name string
	rule             int // counts from 1; 0 if it is not about a rule
	at               int // where the message begins
}

func (o operation) String() string {
	if o.rule > 0 {
		return fmt.Sprintf("%s rule %d of chain %s", o.verb, o.rule, o.name)
	}
	return o.verb + " " + o.kind + " " + o.name
}

// generic begins a message of nfnetlink. The numbers of a batch count from 1; commit adds the count before it.
func (b *batch) generic(kind uint16, flags int, seq uint32, family uint8, resource uint16) {
	b.Begin(kind, flags, seq)
	b.Buf = append(b.Buf, family, unix.NFNETLINK_V0)
	b.Buf = binary.BigEndian.AppendUint16(b.Buf, resource)
}

func (b *batch) begin() {
	b.generic(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	b.End()
}

// message begins a message about op.
func (b *batch) message(kind uint16, flags int, op operation) {
	op.at = len(b.Buf)
	b.ops = append(b.ops, op)
	b.generic(nftKind(kind), flags, uint32(len(b.ops)), unix.NFPROTO_INET, 0)
}

func nftKind(kind uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | kind }

// close ends the batch and requests an answer to its last message, which follows the refusals of all others. The kernel
// rolls back a batch without an end when it has processed all of it.
func (b *batch) close(before uint32) {
	for i, op := range b.ops {
		binary.NativeEndian.PutUint32(b.Buf[op.at+8:], before+uint32(i)+1)
	}
	last := b.ops[len(b.ops)-1].at
	binary.NativeEndian.PutUint16(b.Buf[last+6:], binary.NativeEndian.Uint16(b.Buf[last+6:])|unix.NLM_F_ACK)
	binary.NativeEndian.PutUint32(b.Buf[8:], before)
	if b.check {
		return
	}
	b.generic(unix.NFNL_MSG_BATCH_END, 0, before+uint32(len(b.ops))+1, 0, unix.NFNL_SUBSYS_NFTABLES)
	b.End()
}

// commit makes the transaction.
func (r *Conn) commit(b *batch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.commits == nil {
		return os.ErrClosed
	}
	return b.commit(r.commits)
}

// commit makes the transaction. The kernel works on it before sending returns, so all answers are ready then.
func (b *batch) commit(s *netlink.Socket) error {
	before := s.Seq + 1
	s.Seq += uint32(len(b.ops)) + 2
	b.close(before)
	if len(b.Buf) > sendBuffer {
		s.EnlargeSendBuffer(len(b.Buf) + 4096)
	}
	if err := s.Send(b.Buf); err != nil {
		return sendError(err, len(b.Buf))
	}
	return b.answers(s, before)
}

func sendError(err error, size int) error {
	if errors.Is(err, unix.EMSGSIZE) {
		return fmt.Errorf("a transaction of %d bytes is larger than the socket's buffer, which only CAP_NET_ADMIN "+
			"may enlarge: %w", size, err)
	}
	return err
}

// maxErrors bounds how many refused messages an error lists.
const maxErrors = 3

// answers reads the kernel's answers to the transaction that has the numbers from before.
func (b *batch) answers(s *netlink.Socket, before uint32) error {
	var refused []error
	lost, done := false, false
	for {
		data, err := s.Receive(unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return b.outcome(refused, done && !lost)
		case errors.Is(err, unix.ENOBUFS):
			lost = true
			continue
		case err != nil:
			return fmt.Errorf("%w: %w", ErrUncertain, err)
		}
		for m, rest, ok := netlink.NextMessage(data); ok; m, rest, ok = netlink.NextMessage(rest) {
			n := m.Seq - before // wraps around for answers to an earlier transaction
			if m.Kind != unix.NLMSG_ERROR || n > uint32(len(b.ops))+1 {
				continue
			}
			if err := m.Err(); err != nil {
				refused = append(refused, b.refusal(n, m, err))
			} else if n == uint32(len(b.ops)) {
				done = true
			}
		}
	}
}

// outcome: the kernel makes nothing of a transaction if it refuses any part.
func (b *batch) outcome(refused []error, done bool) error {
	switch {
	case len(refused) > maxErrors:
		more := fmt.Errorf("and %d more", len(refused)-maxErrors)
		return errors.Join(append(refused[:maxErrors:maxErrors], more)...)
	case len(refused) > 0:
		return errors.Join(refused...)
	case !done:
		return ErrUncertain
	}
	return nil
}

// refusal returns the kernel's reason for refusing the nth message; 0 is the begin of the batch and stands for all of
// it.
func (b *batch) refusal(n uint32, m netlink.Message, err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("changing nftables needs CAP_NET_ADMIN in the network namespace: %w", err)
	case n == 0 && errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: it knows no such transactions: %w", ErrMissing, err)
	case n == 0 || int(n) > len(b.ops):
		return fmt.Errorf("the transaction: %w", err)
	}
	op := b.ops[n-1]
	if op.kind == "table" && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)) {
		return fmt.Errorf("%s: %w: it lacks the inet family: %w", op, ErrMissing, err)
	}
	if part := b.missing(op, m, err); part != "" {
		return fmt.Errorf("%s: the kernel's nf_tables lacks %s: %w", op, part, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// missing names the part of nf_tables that the kernel lacks if that is why it refuses a message.
func (b *batch) missing(op operation, m netlink.Message, err error) string {
	switch {
	case op.kind == "base chain" && op.verb == "add" &&
		(errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP)):
		return "the type of chain or its hook in the inet family"
	case (op.kind == "set" || op.kind == "map") && op.verb == "add" && errors.Is(err, unix.EOPNOTSUPP):
		return "this type of set"
	case op.rule > 0 && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP)):
		// ENOENT is also the error for a missing chain or set that a rule names.
		if name := b.expressionAt(op, m.BadAttribute()); name != "" && name != "lookup" && name != "immediate" {
			return "the expression " + name
		}
	}
	return ""
}

// expressionAt returns the name of the expression at an offset in a rule's message, empty if there is something else.
func (b *batch) expressionAt(op operation, offset int) string {
	if offset == 0 || op.at+offset > len(b.Buf) {
		return ""
	}
	kind, value, _, ok := netlink.NextAttr(b.Buf[op.at+offset:])
	if !ok || kind != unix.NFTA_LIST_ELEM {
		return ""
	}
	if kind, name, _, ok := netlink.NextAttr(value); ok && kind == unix.NFTA_EXPR_NAME {
		return text(name)
	}
	return ""
}

// text is a string attribute without its final zero.
func text(b []byte) string { return unix.ByteSliceToString(b) }
