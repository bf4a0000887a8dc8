package kubernetes

import "google.golang.org/protobuf/encoding/protowire"

// parts are the fields of a message to keep, by number. A nil value keeps all of a field; otherwise the field is a
// message, or a list of messages, of which these parts are kept.
type parts map[protowire.Number]parts

// trim appends the kept parts of a message to dst. Most of an object is unused here: managed fields, the details of
// a pod's containers, the images of a node. Skipping costs little; decoding is most of the work of a start. Malformed
// data is kept as it is, for the decoder to report.
func trim(dst, message []byte, keep parts) []byte {
	for len(message) > 0 {
		number, typ, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return append(dst, message...)
		}
		size := protowire.ConsumeFieldValue(number, typ, message[tag:])
		if size < 0 {
			return append(dst, message...)
		}
		below, kept := keep[number]
		switch {
		case kept && below != nil && typ == protowire.BytesType:
			content, _ := protowire.ConsumeBytes(message[tag:])
			dst = trimField(append(dst, message[:tag]...), content, below)
		case kept:
			dst = append(dst, message[:tag+size]...)
		}
		message = message[tag+size:]
	}
	return dst
}

// trimField appends the length and the kept parts of a message in a field.
func trimField(dst, content []byte, keep parts) []byte {
	var length [10]byte // known only afterwards
	start := len(dst)
	dst = trim(dst, content, keep)
	n := len(protowire.AppendVarint(length[:0], uint64(len(dst)-start)))
	dst = append(dst, length[:n]...)
	copy(dst[start+n:], dst[start:])
	copy(dst[start:], length[:n])
	return dst
}

// The numbers of fields are those of Kubernetes' published .proto files, which never change.
var (
	keptMetadata = parts{
		1:  nil, // name
		2:  nil, // generateName
		3:  nil, // namespace
		5:  nil, // uid
		6:  nil, // resourceVersion
		8:  nil, // creationTimestamp
		9:  nil, // deletionTimestamp
		11: nil, // labels
		12: nil, // annotations
	}
	keptContainer = parts{
		1: nil, // name
		6: nil, // ports
	}
	keptPod = parts{
		1: keptMetadata,
		2: { // spec
			2:  keptContainer, // containers
			8:  nil,           // serviceAccountName
			10: nil,           // nodeName
			11: nil,           // hostNetwork
			20: keptContainer, // initContainers
		},
		3: { // status
			1:  nil, // phase
			6:  nil, // podIP
			12: nil, // podIPs
		},
	}
	keptNode = parts{
		1: keptMetadata,
		2: { // spec
			1: nil, // podCIDR
			7: nil, // podCIDRs
		},
		3: { // status
			5: nil, // addresses
		},
	}
	// keptLabels are of a Namespace or a ServiceAccount.
	keptLabels = parts{1: keptMetadata}
	// keptSpec are of a Service or a NetworkPolicy.
	keptSpec = parts{
		1: keptMetadata,
		2: nil, // spec
		3: nil, // status of a Service
	}
	keptSlice = parts{
		1: keptMetadata,
		2: { // endpoints
			1: nil, // addresses
			2: nil, // conditions
			6: nil, // nodeName
		},
		3: nil, // ports
		4: nil, // addressType
	}
)
