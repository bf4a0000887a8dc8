package gobgpinside

import (
	"fmt"
	"net/netip"
	"reflect"
	"unsafe"
)

// idle.go and outbox.go mend the FSM of a peer in GoBGP, to which no exported way leads. They go that way by
// reflection: BgpServer.neighborMap and peer.fsm, after AddPeer has returned. Only AddPeer, DeletePeer and StopBgp
// write the map, and the caller has a lock around all three; peer.fsm is written once, before AddPeer returns. The
// names and types on the way are checked first: another GoBGP is left alone.

// machineField returns the offset of a field of GoBGP's FSM, in bytes, or an error if it has none of type T, or GoBGP
// is not built as expected.
func machineField[T any](server reflect.Type, name string) (uintptr, error) {
	neighbors, ok := server.FieldByName("neighborMap")
	if !ok || neighbors.Type.Kind() != reflect.Map || neighbors.Type.Key() != reflect.TypeFor[netip.Addr]() {
		return 0, fmt.Errorf("%s has no neighborMap by address", server)
	}
	peer, err := pointee(neighbors.Type.Elem())
	if err != nil {
		return 0, fmt.Errorf("neighborMap of %s: %w", server, err)
	}
	fsm, ok := peer.FieldByName("fsm")
	if !ok {
		return 0, fmt.Errorf("%s has no fsm", peer)
	}
	machine, err := pointee(fsm.Type)
	if err != nil {
		return 0, fmt.Errorf("fsm of %s: %w", peer, err)
	}
	f, ok := machine.FieldByName(name)
	if !ok || f.Type != reflect.TypeFor[T]() {
		return 0, fmt.Errorf("%s has no %s of type %s", machine, name, reflect.TypeFor[T]())
	}
	return f.Offset, nil
}

func pointee(t reflect.Type) (reflect.Type, error) {
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("%s is not a pointer to a struct", t)
	}
	return t.Elem(), nil
}

// ofMachine returns a field of the FSM of a peer; nil if there is no such peer, or GoBGP is not built as expected. srv
// points to a server.BgpServer.
func ofMachine[T any](srv any, peer netip.Addr, name string) *T {
	v := reflect.ValueOf(srv).Elem()
	offset, err := machineField[T](v.Type(), name)
	if err != nil {
		return nil
	}
	p := v.FieldByName("neighborMap").MapIndex(reflect.ValueOf(peer))
	if !p.IsValid() || p.IsNil() {
		return nil
	}
	fsm := p.Elem().FieldByName("fsm")
	if fsm.IsNil() {
		return nil
	}
	return (*T)(unsafe.Add(fsm.UnsafePointer(), offset))
}
