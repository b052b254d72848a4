// The attributes of spans and events: a short list of low-cardinality keys, and values that are copied only
// when a sink records them. Standard library only.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <type_traits>

namespace tensorcast::otel {

// A value borrowed from the caller for one call.
class AttributeValue {
 public:
  enum class Type : uint8_t { kBool, kInt, kDouble, kString };

  template <class T>
    requires std::is_same_v<T, bool>
  constexpr AttributeValue(T value) : type_(Type::kBool), bool_(value) {}
  // Unsigned values beyond int64_t wrap: OpenTelemetry has no unsigned attributes on the wire.
  template <class T>
    requires(std::is_integral_v<T> && !std::is_same_v<T, bool>)
  constexpr AttributeValue(T value) : type_(Type::kInt), int_(static_cast<int64_t>(value)) {}
  constexpr AttributeValue(double value) : type_(Type::kDouble), double_(value) {}
  template <class T>
    requires std::is_convertible_v<const T&, std::string_view>
  constexpr AttributeValue(const T& value) : type_(Type::kString), string_(value) {}

  constexpr Type type() const { return type_; }
  constexpr bool as_bool() const { return bool_; }
  constexpr int64_t as_int() const { return int_; }
  constexpr double as_double() const { return double_; }
  constexpr std::string_view as_string() const { return string_; }

 private:
  Type type_;
  union {
    bool bool_;
    int64_t int_;
    double double_;
    std::string_view string_;
  };
};

// A key. Keys of TENSORCAST_ATTRIBUTES are marked as listed; other keys need a look-up (IsAttributeAllowed).
class AttributeKey {
 public:
  constexpr AttributeKey(const char* name) : name_(name) {}
  constexpr AttributeKey(std::string_view name) : name_(name) {}

  // For the list below only.
  static constexpr AttributeKey Listed(std::string_view name) {
    AttributeKey key(name);
    key.listed_ = true;
    return key;
  }

  constexpr std::string_view name() const { return name_; }
  constexpr bool listed() const { return listed_; }

 private:
  std::string_view name_;
  bool listed_ = false;
};

struct Attribute {
  AttributeKey key;
  AttributeValue value;
};

using AttributeList = std::initializer_list<Attribute>;

// The list of allowed keys. Ids are for spans, never for metrics.
// clang-format off
#define TENSORCAST_ATTRIBUTES(X) \
  X(ArtifactId, "tc.artifact.id") \
  X(Key, "tc.key") \
  X(ReplicaId, "tc.replica.id") \
  X(DeviceId, "tc.device.id") \
  X(SessionId, "tc.session.id") \
  X(RequestId, "tc.request.id") \
  X(GrantId, "tc.grant.id") /* of the grant */ \
  X(TransferId, "tc.transfer.id") \
  X(NodeId, "tc.node.id") \
  X(NodeName, "tc.node.name") /* of a span that another process recorded */ \
  X(PeerNodeId, "tc.peer.node.id") \
  X(SizeBytes, "tc.size.bytes") \
  X(SourceType, "tc.source.type") /* remote, disk, local */ \
  X(Location, "tc.location") /* gpu, cpu, disk */ \
  X(OperationType, "tc.operation.type") \
  X(Lane, "tc.lane") /* local, tcp, ucx, ucx-rma, nccl */ \
  X(PreviousLane, "tc.previous.lane") \
  X(Stage, "tc.stage") /* connect, fetch, verify, place */ \
  X(Chunks, "tc.chunks") \
  X(BusySeconds, "tc.busy.seconds") \
  X(RefetchedChunks, "tc.refetched.chunks") \
  X(Shared, "tc.shared") /* joined the ingest of another request */ \
  X(Reason, "tc.reason") /* of an event: why */ \
  X(Attempt, "tc.attempt") \
  X(RpcSystem, "rpc.system") \
  X(RpcService, "rpc.service") \
  X(RpcMethod, "rpc.method") \
  X(RpcGrpcStatusCode, "rpc.grpc.status_code") \
  X(ServerAddress, "server.address") \
  X(ServerPort, "server.port") \
  X(DbSystem, "db.system.name") \
  X(DbOperation, "db.operation.name") \
  X(ErrorType, "error.type") \
  X(ExceptionType, "exception.type") \
  X(ExceptionMessage, "exception.message")
// clang-format on

namespace attr {
#define X(name, text) inline constexpr AttributeKey k##name = AttributeKey::Listed(text);
TENSORCAST_ATTRIBUTES(X)
#undef X
}  // namespace attr

// Allows another key, for code that uses the library and traces its own work. Thread-safe; meant for
// start-up.
void AllowAttribute(std::string_view key);

// For debugging: if `allow` is true, spans may carry every key.
void AllowAllAttributes(bool allow);

// Whether a span may carry this key. Thread-safe.
bool IsAttributeAllowed(const AttributeKey& key);

}  // namespace tensorcast::otel
