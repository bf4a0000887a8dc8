package server

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
)

// caller is the caller of a call, as the kernel reports it.
type caller struct {
	credentials.CommonAuthInfo
	pid int32
	uid uint32
	gid uint32
}

// AuthType implements credentials.AuthInfo.
func (caller) AuthType() string { return "unix peer credentials" }

// peerCredentials reads the credentials of the process at the other end of a unix socket. There is no encryption:
// nothing leaves the kernel.
type peerCredentials struct{}

func (peerCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, nil, errors.New("peer credentials exist on unix sockets only")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, nil, err
	}
	if credErr != nil {
		return nil, nil, credErr
	}
	return c, caller{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		pid:            cred.Pid, uid: cred.Uid, gid: cred.Gid,
	}, nil
}

func (peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("only servers read peer credentials")
}

func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}
func (peerCredentials) Clone() credentials.TransportCredentials { return peerCredentials{} }
func (peerCredentials) OverrideServerName(string) error         { return nil }

// allows implements identity: who can open the socket may do everything.
func (caller) allows(Role) error { return nil }

// fields implements identity.
func (c caller) fields() []zap.Field {
	// The name is a help for the reader only: the process may be gone or have another name by now.
	name, _ := os.ReadFile("/proc/" + strconv.Itoa(int(c.pid)) + "/comm")
	return []zap.Field{
		zap.Int32("caller_pid", c.pid), zap.Uint32("caller_uid", c.uid),
		zap.String("caller_name", strings.TrimSpace(string(name))),
	}
}
