#include "otel/sdk/testing/otlp_receiver.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <atomic>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"
#include "otlp_subset.pb.h"

namespace tensorcast::otel::testing {
namespace {

using KeyValues = google::protobuf::RepeatedPtrField<otlp::KeyValue>;

std::string Text(const otlp::Value& value) {
  switch (value.value_case()) {
    case otlp::Value::kText:
      return value.text();
    case otlp::Value::kFlag:
      return value.flag() ? "true" : "false";
    case otlp::Value::kInteger:
      return absl::StrCat(value.integer());
    case otlp::Value::kNumber:
      return absl::StrCat(value.number());
    case otlp::Value::VALUE_NOT_SET:
      return "";
  }
  return "";
}

StringMap ToMap(const KeyValues& pairs) {
  StringMap map;
  for (const otlp::KeyValue& pair : pairs) map[pair.key()] = Text(pair.value());
  return map;
}

absl::Time ToTime(uint64_t nanos) { return absl::FromUnixNanos(static_cast<int64_t>(nanos)); }

ReceivedSpan ToSpan(const otlp::Span& from, const StringMap& resource) {
  ReceivedSpan span{.resource = resource,
                    .name = from.name(),
                    .trace_id = absl::BytesToHexString(from.trace_id()),
                    .span_id = absl::BytesToHexString(from.span_id()),
                    .parent_span_id = absl::BytesToHexString(from.parent_span_id()),
                    .trace_state = from.trace_state(),
                    .kind = from.kind(),
                    .start = ToTime(from.start_time_unix_nano()),
                    .end = ToTime(from.end_time_unix_nano()),
                    .attributes = ToMap(from.attributes()),
                    .dropped_attributes = from.dropped_attributes_count(),
                    .dropped_events = from.dropped_events_count(),
                    .dropped_links = from.dropped_links_count(),
                    .error = from.status().code() == 2,
                    .status_message = from.status().message()};
  for (const auto& event : from.events()) span.events.push_back({event.name(), ToMap(event.attributes())});
  for (const auto& link : from.links()) {
    span.links.push_back({absl::BytesToHexString(link.trace_id()), absl::BytesToHexString(link.span_id()),
                          ToMap(link.attributes())});
  }
  return span;
}

std::vector<ReceivedMetric> ToMetrics(const otlp::Metric& from, const StringMap& resource) {
  using Kind = ReceivedMetric::Kind;
  std::vector<ReceivedMetric> metrics;
  const auto add = [&](Kind kind, const KeyValues& labels) -> ReceivedMetric& {
    return metrics.emplace_back(ReceivedMetric{.resource = resource,
                                               .name = from.name(),
                                               .unit = from.unit(),
                                               .description = from.description(),
                                               .kind = kind,
                                               .labels = ToMap(labels)});
  };
  const auto add_numbers = [&](Kind kind, const auto& points) {
    for (const otlp::NumberPoint& point : points) {
      add(kind, point.attributes()).value = point.value_case() == otlp::NumberPoint::kAsInt
                                                ? static_cast<double>(point.as_int())
                                                : point.as_double();
    }
  };
  add_numbers(Kind::kGauge, from.gauge().data_points());
  add_numbers(from.sum().is_monotonic() ? Kind::kCounter : Kind::kUpDownCounter, from.sum().data_points());
  for (const otlp::HistogramPoint& point : from.histogram().data_points()) {
    ReceivedMetric& metric = add(Kind::kHistogram, point.attributes());
    metric.value = point.sum();
    metric.count = point.count();
    metric.bounds.assign(point.explicit_bounds().begin(), point.explicit_bounds().end());
  }
  return metrics;
}

ReceivedLog ToLog(const otlp::LogRecord& from, const StringMap& resource) {
  return {.resource = resource,
          .severity = from.severity_number(),
          .body = Text(from.body()),
          .attributes = ToMap(from.attributes()),
          .trace_id = absl::BytesToHexString(from.trace_id()),
          .span_id = absl::BytesToHexString(from.span_id())};
}

class Call;

// What arrived, and which calls hang.
class Store {
 public:
  void Begin(StringMap headers) {
    absl::MutexLock lock(&mutex_);
    ++calls_;
    headers_ = std::move(headers);
  }

  bool IsOfInterest(std::string_view method) const {
    return behaviour() != Behaviour::kCountOnly || absl::StrContains(method, "MetricsService");
  }

  // False for a message that is not one.
  bool Take(std::string_view method, const std::string& bytes) {
    absl::MutexLock lock(&mutex_);
    const bool taken = TakeLocked(method, bytes);
    ++revision_;
    return taken;
  }

  Behaviour behaviour() const {
    absl::MutexLock lock(&mutex_);
    return behaviour_;
  }
  // Waiting calls look again.
  std::set<Call*> SetBehaviour(Behaviour behaviour) {
    absl::MutexLock lock(&mutex_);
    behaviour_ = behaviour;
    return behaviour == Behaviour::kHang ? std::set<Call*>() : std::exchange(hanging_, {});
  }
  // Both false when somebody else answers the call.
  bool Hang(Call* call) {
    absl::MutexLock lock(&mutex_);
    ++revision_;
    if (behaviour_ != Behaviour::kHang) return false;
    hanging_.insert(call);
    return true;
  }
  bool StopHanging(Call* call) {
    absl::MutexLock lock(&mutex_);
    return hanging_.erase(call) > 0;
  }

  template <class T>
  T Copy(T Store::* member) const {
    absl::MutexLock lock(&mutex_);
    return this->*member;
  }

  bool WaitFor(absl::Duration timeout, absl::FunctionRef<bool()> condition) {
    const SteadyTime deadline = SteadyNow() + timeout;
    while (true) {
      const uint64_t seen = Copy(&Store::revision_);
      if (condition()) return true;
      absl::MutexLock lock(&mutex_);
      auto changed = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return revision_ != seen; };
      if (!mutex_.AwaitWithTimeout(absl::Condition(&changed), TimeLeft(deadline))) break;
    }
    return condition();
  }

  std::vector<ReceivedSpan> spans_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReceivedLog> logs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, ReceivedMetric> metrics_ ABSL_GUARDED_BY(mutex_);  // by series
  StringMap headers_ ABSL_GUARDED_BY(mutex_);
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;

 private:
  bool TakeLocked(std::string_view method, const std::string& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (absl::StrContains(method, "TraceService")) return TakeSpans(bytes);
    if (absl::StrContains(method, "MetricsService")) return TakeMetrics(bytes);
    return absl::StrContains(method, "LogsService") && TakeLogs(bytes);
  }

  bool TakeSpans(const std::string& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    otlp::TraceRequest request;
    if (!request.ParseFromString(bytes)) return false;
    for (const auto& resource : request.resource_spans()) {
      const StringMap attributes = ToMap(resource.resource().attributes());
      for (const auto& scope : resource.scope_spans()) {
        for (const auto& span : scope.spans()) spans_.push_back(ToSpan(span, attributes));
      }
    }
    return true;
  }

  bool TakeMetrics(const std::string& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    otlp::MetricsRequest request;
    if (!request.ParseFromString(bytes)) return false;
    for (const auto& resource : request.resource_metrics()) {
      const StringMap attributes = ToMap(resource.resource().attributes());
      for (const auto& scope : resource.scope_metrics()) {
        for (const auto& metric : scope.metrics()) {
          for (ReceivedMetric& point : ToMetrics(metric, attributes)) TakePoint(std::move(point));
        }
      }
    }
    return true;
  }

  void TakePoint(ReceivedMetric point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::string series = absl::StrCat(point.resource["service.instance.id"], " ", point.name);
    for (const auto& [key, value] : point.labels) absl::StrAppend(&series, " ", key, "=", value);
    metrics_.insert_or_assign(std::move(series), std::move(point));
  }

  bool TakeLogs(const std::string& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    otlp::LogsRequest request;
    if (!request.ParseFromString(bytes)) return false;
    for (const auto& resource : request.resource_logs()) {
      const StringMap attributes = ToMap(resource.resource().attributes());
      for (const auto& scope : resource.scope_logs()) {
        for (const auto& record : scope.log_records()) logs_.push_back(ToLog(record, attributes));
      }
    }
    return true;
  }

  mutable absl::Mutex mutex_;
  uint64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
  Behaviour behaviour_ ABSL_GUARDED_BY(mutex_) = Behaviour::kAccept;
  std::set<Call*> hanging_ ABSL_GUARDED_BY(mutex_);
};

// One export call, of whichever of the three services. Owns itself.
class Call final : public grpc::ServerGenericBidiReactor {
 public:
  Call(Store& store, grpc::GenericCallbackServerContext& context) : store_(store), method_(context.method()) {
    StringMap headers;
    for (const auto& [key, value] : context.client_metadata()) {
      headers[std::string(key.data(), key.size())] = std::string(value.data(), value.size());
    }
    store_.Begin(std::move(headers));
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no request"));
    if (!store_.Hang(this)) return Answer();
    // The cancellation may have come before the call was known to hang.
    if (cancelled_ && store_.StopHanging(this)) Finish(grpc::Status::CANCELLED);
  }

  void Answer() {
    if (store_.behaviour() == Behaviour::kRefuse) {
      return Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "this receiver refuses"));
    }
    if (store_.behaviour() == Behaviour::kReject) {
      return Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "this receiver rejects"));
    }
    if (!store_.IsOfInterest(method_)) return Accept();
    std::vector<grpc::Slice> slices;
    std::string bytes;
    if (request_.Dump(&slices).ok()) {
      for (const grpc::Slice& slice : slices) {
        bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
    }
    if (!store_.Take(method_, bytes)) {
      return Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "not OTLP"));
    }
    Accept();
  }

  void Accept() {
    const grpc::Slice empty("");  // an empty message is what the services answer with
    response_ = grpc::ByteBuffer(&empty, 1);
    StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  }

  void OnCancel() override {
    cancelled_ = true;
    if (store_.StopHanging(this)) Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  Store& store_;
  const std::string method_;
  std::atomic<bool> cancelled_{false};
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
};

class Service final : public grpc::CallbackGenericService {
 public:
  explicit Service(Store& store) : store_(store) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    return new Call(store_, *context);
  }

 private:
  Store& store_;
};

class Receiver final : public OtlpReceiver {
 public:
  ~Receiver() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  absl::Status Listen(const std::string& listen) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      return absl::UnavailableError(absl::StrCat("the OTLP receiver cannot listen on ", listen));
    }
    endpoint_ = absl::StrCat("http://", listen.substr(0, listen.rfind(':')), ":", port);
    return absl::OkStatus();
  }

  std::string endpoint() const override { return endpoint_; }
  void SetBehaviour(Behaviour behaviour) override {
    for (Call* call : store_.SetBehaviour(behaviour)) call->Answer();
  }
  std::vector<ReceivedSpan> spans() const override { return store_.Copy(&Store::spans_); }
  std::vector<ReceivedLog> logs() const override { return store_.Copy(&Store::logs_); }
  std::vector<ReceivedMetric> metrics() const override {
    std::vector<ReceivedMetric> metrics;
    for (auto& [series, metric] : store_.Copy(&Store::metrics_)) metrics.push_back(metric);
    return metrics;
  }
  StringMap last_headers() const override { return store_.Copy(&Store::headers_); }
  int calls() const override { return store_.Copy(&Store::calls_); }
  bool WaitFor(absl::Duration timeout, absl::FunctionRef<bool()> condition) override {
    return store_.WaitFor(timeout, condition);
  }

 private:
  Store store_;
  Service service_{store_};
  std::unique_ptr<grpc::Server> server_;
  std::string endpoint_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OtlpReceiver>> OtlpReceiver::Start(const std::string& listen) {
  auto receiver = std::make_unique<Receiver>();
  if (absl::Status status = receiver->Listen(listen); !status.ok()) return status;
  return receiver;
}

}  // namespace tensorcast::otel::testing
