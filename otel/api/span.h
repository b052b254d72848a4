// Spans, for our own layers and for users' code.
//
//   otel::Span span("StoreEngine/P2PIngest", context, {{attr::kSizeBytes, bytes}});
//   span.AttachTo(&context);                       // calls made with `context` become its children
//   ...
//   return span.Record(status);                    // an error marks the span
//
// A Span ends when it is destroyed or End() is called, whichever is first. It is a value: it may end on
// another thread, but only one thread uses it at a time. In an otel::Scope (or the SC_TRACE_* macros) a span
// is the thread's current span: log lines carry its ids, and it is the parent of spans in called code that
// gets no context. Nothing else is thread-local.
//
// If no sink is installed (trace_sink.h), every call costs a load and a branch, context() is not valid, and
// AttachTo changes nothing.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "base/trace_context.h"
#include "otel/api/attributes.h"
#include "otel/api/trace_sink.h"

namespace tensorcast::otel {

struct SpanOptions {
  SpanKind kind = SpanKind::kInternal;
  std::span<const SpanLink> links = {};
  SteadyTime start = SteadyTime::InfinitePast();  // for work that has ended already; InfinitePast: now
  const TraceContext* reserved = nullptr;         // from ReserveSpan, for this span; null: new ids
};

// Reserves the ids of a span that is made only when its work has ended. While the work runs, other spans can
// be its children or link to it. Decides whether the span is recorded. Returns `parent` if telemetry is off.
TraceContext ReserveSpan(const TraceContext& parent);

// The thread's current span, or an invalid context.
const TraceContext& CurrentContext();

class Span {
 public:
  // No span: all calls on it do nothing.
  Span() = default;

  // A child of `parent`; the root of a trace when `parent` is not valid.
  Span(std::string_view name, const TraceContext& parent, AttributeList attributes = {},
       const SpanOptions& options = {}) {
    if (IsTracing()) [[unlikely]]
      Start(name, parent, attributes, options, false);
  }
  Span(std::string_view name, const RequestContext& parent, AttributeList attributes = {},
       const SpanOptions& options = {})
      : Span(name, parent.trace, attributes, options) {}
  // A child of the thread's current span.
  explicit Span(std::string_view name, AttributeList attributes = {}, const SpanOptions& options = {}) {
    if (IsTracing()) [[unlikely]]
      Start(name, CurrentContext(), attributes, options, false);
  }

  Span(Span&& other) noexcept : state_(std::move(other.state_)) { other.state_.reset(); }
  Span& operator=(Span&& other) noexcept {
    if (this != &other) {
      End();
      state_ = std::move(other.state_);
      other.state_.reset();
    }
    return *this;
  }
  ~Span() {
    if (state_.has_value()) [[unlikely]]
      EndStarted(SteadyTime::InfinitePast());
  }

  // Whether a sink records the span. Check this before work that only serves the span.
  bool recording() const { return state_.has_value() && state_->recording; }

  void SetAttribute(const AttributeKey& key, const AttributeValue& value) {
    if (recording()) [[unlikely]]
      RecordAttribute(key, value);
  }
  // `at` is the time of the event, for an event that is added later; InfinitePast: now.
  void AddEvent(std::string_view name, AttributeList attributes = {},
                SteadyTime at = SteadyTime::InfinitePast()) {
    if (recording()) [[unlikely]]
      RecordEvent(name, attributes, at);
  }
  void AddLink(const TraceContext& context, AttributeList attributes = {}) {
    if (recording()) [[unlikely]]
      RecordLink(context, attributes);
  }
  // Marks the span as failed and records why. OK changes nothing.
  void SetError(const absl::Status& status) {
    if (recording() && !status.ok()) [[unlikely]]
      RecordError(absl::StatusCodeToString(status.code()), status.message());
  }
  // For errors that are not Status.
  void SetError(std::string_view type, std::string_view message) {
    if (recording()) [[unlikely]]
      RecordError(type, message);
  }
  // Passes a Status or StatusOr on, after SetError.
  template <class Result>
  Result Record(Result result) {
    if constexpr (std::is_same_v<Result, absl::Status>) {
      SetError(result);
    } else {
      SetError(result.status());
    }
    return result;
  }

  void End(SteadyTime end = SteadyTime::InfinitePast()) {
    if (state_.has_value()) [[unlikely]]
      EndStarted(end);
  }

  // The parent for children of this span; not valid when there is no span.
  const TraceContext& context() const;
  // Makes this span the parent of work that uses `context`.
  void AttachTo(RequestContext* context) const {
    if (state_.has_value()) [[unlikely]]
      context->trace = state_->context;
  }

 private:
  friend class ScopedSpan;

  struct State {
    std::unique_ptr<SpanRecord> records[kSinkKinds];
    bool recording = false;
    TraceContext context;

    State() {}  // std::optional needs a complete State before Span is complete
  };

  void Start(std::string_view name, const TraceContext& parent, AttributeList attributes,
             const SpanOptions& options, bool scoped);
  void RecordAttribute(const AttributeKey& key, const AttributeValue& value);
  void RecordEvent(std::string_view name, AttributeList attributes, SteadyTime at);
  void RecordLink(const TraceContext& context, AttributeList attributes);
  void RecordError(std::string_view type, std::string_view message);
  void EndStarted(SteadyTime end);

  std::optional<State> state_;
};

// While a Scope lives, its span is the thread's current span. A context stands for the span of another thread
// or process. Scopes nest. Destroy a scope on the thread that made it, and before its span or context.
class Scope {
 public:
  explicit Scope(Span& span) {
    if (IsTracing()) [[unlikely]]
      Enter(span.context(), &span);
  }
  explicit Scope(const TraceContext& context) {
    if (IsTracing()) [[unlikely]]
      Enter(context, nullptr);
  }
  explicit Scope(const RequestContext& context) : Scope(context.trace) {}
  ~Scope() {
    if (context_ != nullptr) [[unlikely]]
      Leave();
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  friend class ScopedSpan;
  friend const TraceContext& CurrentContext();
  friend Span* CurrentSpan();

  Scope() = default;
  void Enter(const TraceContext& context, Span* span);
  void Leave();

  const TraceContext* context_ = nullptr;
  Span* span_ = nullptr;
  Scope* outer_ = nullptr;
};

// A span that is its thread's current one from its beginning to its end.
class ScopedSpan {
 public:
  explicit ScopedSpan(std::string_view name, AttributeList attributes = {}) {
    if (IsTracing()) [[unlikely]]
      Start(name, CurrentContext(), attributes);
  }
  ScopedSpan(std::string_view name, const TraceContext& parent, AttributeList attributes = {}) {
    if (IsTracing()) [[unlikely]]
      Start(name, parent, attributes);
  }
  ScopedSpan(std::string_view name, const RequestContext& parent, AttributeList attributes = {})
      : ScopedSpan(name, parent.trace, attributes) {}

  Span& span() { return span_; }
  Span* operator->() { return &span_; }

 private:
  void Start(std::string_view name, const TraceContext& parent, AttributeList attributes);

  Span span_;
  Scope scope_;  // left before the span ends
};

// The thread's current span; null outside every scope, and in a scope that only has a context.
Span* CurrentSpan();
// The trace id of the current span; "" outside every scope.
std::string CurrentTraceId();

// These functions apply to the current span, if there is one.
void SetAttribute(const AttributeKey& key, const AttributeValue& value);
void AddEvent(std::string_view name, AttributeList attributes = {});
void SetError(const absl::Status& status);

// Runs `work` in a scoped span and returns its result; an absl::Status or StatusOr with an error marks the
// span. `work` takes no argument, or the Span&.
template <class Work>
auto InSpan(std::string_view name, const TraceContext& parent, Work&& work) {
  ScopedSpan scoped(name, parent);
  const auto call = [&]() -> decltype(auto) {
    if constexpr (std::is_invocable_v<Work, Span&>) {
      return std::invoke(std::forward<Work>(work), scoped.span());
    } else {
      return std::invoke(std::forward<Work>(work));
    }
  };
  using Result = decltype(call());
  if constexpr (std::is_void_v<Result>) {
    call();
  } else if constexpr (std::is_same_v<Result, absl::Status> || requires(Result r) { r.status().ok(); }) {
    return scoped.span().Record(call());
  } else {
    return call();
  }
}
template <class Work>
auto InSpan(std::string_view name, Work&& work) {
  return InSpan(name, CurrentContext(), std::forward<Work>(work));
}

// A callable that runs `work` in a new span at each call. The parent is the span that is current when Traced
// is called.
template <class Work>
auto Traced(std::string name, Work work) {
  return [name = std::move(name), parent = CurrentContext(), work = std::move(work)](auto&&... args) {
    return InSpan(name, parent, [&] { return work(std::forward<decltype(args)>(args)...); });
  };
}

// Whether any signal is exported or recorded. Set by otel/sdk and by the trace file.
bool IsTelemetryEnabled();
namespace internal {
void SetTelemetryEnabled(bool enabled);
}

}  // namespace tensorcast::otel
