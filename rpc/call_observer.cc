#include "rpc/call_observer.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/log/log.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"
#include "proto/types.pb.h"
#include "rpc/convert/convert.h"

namespace tensorcast::rpc {
namespace {

namespace attr = otel::attr;
namespace metrics = otel::metrics;

constexpr int kCancelledCode = 1;

// Health checks, reflection and heartbeats come by the clock, not by a user's request: metrics suffice.
bool DeservesSpan(const MethodName& name) {
  return !name.service.starts_with("grpc.") && name.method != "Heartbeat";
}

// Every attempt at a call has spans of its own; those after the first say so.
void NoteAttempt(otel::Span& span, CallSide side, std::string_view attempt) {
  int number = 0;
  if (!span.recording() || !absl::SimpleAtoi(attempt, &number)) return;
  span.SetAttribute(attr::kAttempt, number);
  if (side == CallSide::kServer) return;
  span.AddEvent("retry",
                {{attr::kAttempt, number}, {attr::kReason, "UNAVAILABLE"}});  // nothing else is retried
}

std::string_view SideName(CallSide side) { return side == CallSide::kServer ? "server" : "client"; }

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The ids that a span of a call shows. A message may have any of them, by these names.
struct TextField {
  std::string_view name;
  otel::AttributeKey key;
};
constexpr TextField kTextFields[] = {
    {"artifact_id", attr::kArtifactId}, {"key", attr::kKey},        {"replica_id", attr::kReplicaId},
    {"grant_id", attr::kGrantId},       {"node_id", attr::kNodeId}, {"receiver_node_id", attr::kPeerNodeId},
};
// What a request is about may be one level down.
constexpr std::string_view kNested[] = {"node", "location", "destination", "binding", "replica", "origin"};

// Where the ids are in one type of message.
struct Layout {
  std::vector<std::pair<const FieldDescriptor*, otel::AttributeKey>> texts;
  std::vector<std::pair<const FieldDescriptor*, const Layout*>> nested;
  bool is_location = false;
};

// Made at the first message of a type: the look-ups by name cost more than a call may. From then on a call
// takes the shared lock for one search in the map.
class Layouts {
 public:
  static Layouts& Instance() {
    static auto* const layouts = new Layouts;
    return *layouts;
  }

  const Layout& Of(const Descriptor* type) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::ReaderMutexLock lock(&mutex_);
      if (const auto known = layouts_.find(type); known != layouts_.end()) return *known->second;
    }
    absl::MutexLock lock(&mutex_);
    return Make(type);
  }

 private:
  const Layout& Make(const Descriptor* type) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // Layouts never move or go, so readers keep references without the lock.
    std::unique_ptr<Layout>& made = layouts_[type];
    if (made != nullptr) return *made;
    // The map names the layout before it is complete, so that a type that contains itself ends the recursion.
    // Readers wait for the lock meanwhile.
    made = std::make_unique<Layout>();
    Layout& layout = *made;
    layout.is_location = type == v1::Location::descriptor();
    for (const TextField& text : kTextFields) {
      const FieldDescriptor* field = type->FindFieldByName(std::string(text.name));
      if (field != nullptr && !field->is_repeated() && field->type() == FieldDescriptor::TYPE_STRING) {
        layout.texts.emplace_back(field, text.key);
      }
    }
    for (const std::string_view name : kNested) {
      const FieldDescriptor* field = type->FindFieldByName(std::string(name));
      if (field != nullptr && !field->is_repeated() && field->type() == FieldDescriptor::TYPE_MESSAGE) {
        layout.nested.emplace_back(field, &Make(field->message_type()));
      }
    }
    return layout;
  }

  absl::Mutex mutex_;
  std::map<const Descriptor*, std::unique_ptr<Layout>> layouts_ ABSL_GUARDED_BY(mutex_);
};

void SetFrom(const Message& message, const Layout& layout, otel::Span& span) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (layout.is_location) {
    const auto& said = static_cast<const v1::Location&>(message);
    const absl::StatusOr<Location> location = FromProto(said);
    if (!location.ok() || said.kind() == v1::LOCATION_KIND_UNSPECIFIED) return;
    span.SetAttribute(attr::kLocation, LocationKindName(location->kind));
    if (location->kind == LocationKind::kGpu) span.SetAttribute(attr::kDeviceId, location->device);
    return;
  }
  std::string scratch;
  for (const auto& [field, key] : layout.texts) {
    const std::string& text = reflection.GetStringReference(message, field, &scratch);
    if (!text.empty()) span.SetAttribute(key, text);
  }
  for (const auto& [field, nested] : layout.nested) {
    if (reflection.HasField(message, field)) SetFrom(reflection.GetMessage(message, field), *nested, span);
  }
}

constexpr int kLinesPerSecond = 100;
constexpr size_t kMaxErrorBytes = 1024;

// Counts the lines of one kind in each second.
class Flood {
 public:
  // Whether one more line may be written; `*left_out`: how many were not, in the seconds before.
  bool Admit(uint64_t* left_out) {
    absl::MutexLock lock(&mutex_);
    const SteadyTime now = SteadyNow();
    if (now - since_ >= absl::Seconds(1)) {
      since_ = now;
      lines_ = 0;
    }
    if (++lines_ > kLinesPerSecond) {
      ++left_out_;
      return false;
    }
    *left_out = left_out_;
    left_out_ = 0;
    return true;
  }

 private:
  absl::Mutex mutex_;
  SteadyTime since_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  int lines_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

bool CancelledByItsCaller(const RequestContext& context, const absl::Status& status) {
  return absl::IsCancelled(status) && context.cancellation.IsCancelled() && SteadyNow() < context.deadline;
}

}  // namespace

MethodName ParseMethod(std::string_view path) {
  if (path.starts_with('/')) path.remove_prefix(1);
  const size_t slash = path.find('/');
  if (slash == std::string_view::npos) return {.service = path, .method = "", .label = path};
  MethodName name{.service = path.substr(0, slash), .method = path.substr(slash + 1), .label = path};
  if (const size_t dot = name.service.rfind('.'); dot != std::string_view::npos) {
    name.label.remove_prefix(dot + 1);
  }
  return name;
}

// gRPC destroys some calls without a status having passed the interceptor; each that began is counted as
// ended all the same.
CallObserver::~CallObserver() { End(kCancelledCode, "the call ended without a status"); }

void CallObserver::Start(CallSide side, const char* method, std::string_view attempt,
                         std::string_view session, RequestContext* context) {
  call_.emplace(Call{.side = side, .name = ParseMethod(method), .start = SteadyNow(), .span = {}});
  metrics::kRpcInFlight.Add(1, {SideName(side), call_->name.label});
  if (!DeservesSpan(call_->name)) return;
  const otel::SpanKind kind = side == CallSide::kServer ? otel::SpanKind::kServer : otel::SpanKind::kClient;
  call_->span = otel::Span(call_->name.label, *context,
                           {{attr::kRpcSystem, "grpc"},
                            {attr::kRpcService, call_->name.service},
                            {attr::kRpcMethod, call_->name.method}},
                           {.kind = kind});
  if (!context->request_id.empty()) call_->span.SetAttribute(attr::kRequestId, context->request_id);
  if (!session.empty()) call_->span.SetAttribute(attr::kSessionId, session);
  NoteAttempt(call_->span, side, attempt);
  // What the call causes from here on is below its span.
  call_->span.AttachTo(context);
}

void CallObserver::SetIds(const google::protobuf::Message& request) {
  if (!std::exchange(call_->named, true)) SetRequestAttributes(request, call_->span);
}

void CallObserver::Finish(int code, const std::string& message) {
  const absl::Status status(static_cast<absl::StatusCode>(code), message);
  call_->span.SetAttribute(attr::kRpcGrpcStatusCode, code);
  // What the caller did wrong is not an error of the server.
  if (call_->side == CallSide::kClient || IsServersFault(status.code())) call_->span.SetError(status);
  call_->span.End();

  const std::string_view side = SideName(call_->side);
  const std::string code_name = absl::StatusCodeToString(status.code());
  metrics::kRpcInFlight.Add(-1, {side, call_->name.label});
  metrics::kRpcRequests.Add(1, {side, call_->name.label, code_name});
  if (!status.ok()) metrics::kRpcErrors.Add(1, {side, call_->name.label, code_name});
  metrics::kRpcDurationSeconds.Record(absl::ToDoubleSeconds(SteadyNow() - call_->start),
                                      {side, call_->name.label});
  call_.reset();
}

void SetRequestAttributes(const Message& request, otel::Span& span) {
  if (!span.recording()) return;
  SetFrom(request, Layouts::Instance().Of(request.GetDescriptor()), span);
}

bool IsServersFault(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

void LogFailedCall(std::string_view method, const RequestContext& context, const absl::Status& status) {
  // Each has its own lines: callers that ask for what does not exist must not hide that a server fails.
  // Never destroyed: calls may still fail while the process ends.
  static auto* const of_servers = new Flood;
  static auto* const of_callers = new Flood;
  // The caller hung up: that is not a failure.
  if (CancelledByItsCaller(context, status)) return;
  uint64_t left_out = 0;
  const bool servers_fault = IsServersFault(status.code());
  if (!(servers_fault ? of_servers : of_callers)->Admit(&left_out)) return;
  const otel::Scope scope(context);
  std::string line = absl::StrCat(method, " failed: ", absl::StatusCodeToString(status.code()), ": ",
                                  absl::Utf8SafeCEscape(status.message().substr(0, kMaxErrorBytes)));
  if (left_out > 0) absl::StrAppend(&line, " (", left_out, " other failures were not logged)");
  if (servers_fault) {
    LOG(WARNING) << line;
  } else {
    LOG(INFO) << line;
  }
}

}  // namespace tensorcast::rpc
