// What spans and events may say about themselves: a short list of low-cardinality keys, and values that are
// never copied unless a sink records them. Standard library only.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <type_traits>

namespace tensorcast::otel {

// A value borrowed from the caller for the length of one call.
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

// A key. Those of the list below know that they are on it; any other is looked up when it is used.
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

// The allow-list. Ids are for spans, never for metrics.
namespace attr {
inline constexpr AttributeKey kArtifactId = AttributeKey::Listed("tc.artifact.id");
inline constexpr AttributeKey kKey = AttributeKey::Listed("tc.key");
inline constexpr AttributeKey kReplicaId = AttributeKey::Listed("tc.replica.id");
inline constexpr AttributeKey kDeviceId = AttributeKey::Listed("tc.device.id");
inline constexpr AttributeKey kSessionId = AttributeKey::Listed("tc.session.id");
inline constexpr AttributeKey kRequestId = AttributeKey::Listed("tc.request.id");
inline constexpr AttributeKey kGrantId = AttributeKey::Listed("tc.grant.id");  // of the grant
inline constexpr AttributeKey kTransferId = AttributeKey::Listed("tc.transfer.id");
inline constexpr AttributeKey kNodeId = AttributeKey::Listed("tc.node.id");
inline constexpr AttributeKey kPeerNodeId = AttributeKey::Listed("tc.peer.node.id");
inline constexpr AttributeKey kSizeBytes = AttributeKey::Listed("tc.size.bytes");
inline constexpr AttributeKey kSourceType = AttributeKey::Listed("tc.source.type");  // remote, disk, local
inline constexpr AttributeKey kLocation = AttributeKey::Listed("tc.location");       // gpu, cpu, disk
inline constexpr AttributeKey kOperationType = AttributeKey::Listed("tc.operation.type");
inline constexpr AttributeKey kLane = AttributeKey::Listed("tc.lane");  // local, ucx, ucx-rma, nccl
inline constexpr AttributeKey kPreviousLane = AttributeKey::Listed("tc.previous.lane");
inline constexpr AttributeKey kStage = AttributeKey::Listed("tc.stage");  // connect, fetch, verify, place
inline constexpr AttributeKey kChunks = AttributeKey::Listed("tc.chunks");
inline constexpr AttributeKey kBusySeconds = AttributeKey::Listed("tc.busy.seconds");
inline constexpr AttributeKey kRefetchedChunks = AttributeKey::Listed("tc.refetched.chunks");
inline constexpr AttributeKey kShared = AttributeKey::Listed("tc.shared");  // joined another's ingest
inline constexpr AttributeKey kReason = AttributeKey::Listed("tc.reason");  // of an event: why
inline constexpr AttributeKey kAttempt = AttributeKey::Listed("tc.attempt");

inline constexpr AttributeKey kRpcSystem = AttributeKey::Listed("rpc.system");
inline constexpr AttributeKey kRpcService = AttributeKey::Listed("rpc.service");
inline constexpr AttributeKey kRpcMethod = AttributeKey::Listed("rpc.method");
inline constexpr AttributeKey kRpcGrpcStatusCode = AttributeKey::Listed("rpc.grpc.status_code");
inline constexpr AttributeKey kDbSystem = AttributeKey::Listed("db.system");
inline constexpr AttributeKey kDbOperation = AttributeKey::Listed("db.operation");
inline constexpr AttributeKey kErrorType = AttributeKey::Listed("error.type");
inline constexpr AttributeKey kExceptionType = AttributeKey::Listed("exception.type");
inline constexpr AttributeKey kExceptionMessage = AttributeKey::Listed("exception.message");
}  // namespace attr

// Adds a key to the list, for code that uses the library and traces work of its own. Thread-safe; meant for
// start-up.
void AllowAttribute(std::string_view key);

// The debug switch: with it every key passes.
void AllowAllAttributes(bool allow);

// Whether a span may carry this key. Thread-safe.
bool IsAttributeAllowed(const AttributeKey& key);

}  // namespace tensorcast::otel
