#include "otel/api/span.h"

#include <algorithm>
#include <cstring>

#include "base/steady_time.h"
#include "base/upkeep.h"
#include "otel/api/upkeep_record.h"

namespace tensorcast::otel {
namespace {

// The innermost scope of the thread. Each scope points to the one around it.
thread_local Scope* current_scope = nullptr;
std::atomic<bool> telemetry_enabled{false};

const TraceContext kNoContext;

// More than this many at once is a programming error; the rest are left out.
constexpr size_t kMaxFiltered = 32;

// The allowed ones of `attributes`: themselves where all are, else copied to `storage`.
// In the usual case every attribute is allowed, and nothing is copied. The storage is raw bytes, since an
// Attribute has no default constructor, and is on the stack, since spans are made on the path of every call.
class Allowed {
 public:
  explicit Allowed(AttributeList attributes) : view_(attributes.begin(), attributes.size()) {
    const bool all = std::ranges::all_of(view_, [](const Attribute& a) { return IsAttributeAllowed(a.key); });
    if (!all) Copy();
  }
  std::span<const Attribute> view() const { return view_; }

 private:
  void Copy() {
    size_t count = 0;
    for (const Attribute& attribute : view_) {
      if (count == kMaxFiltered) break;
      if (IsAttributeAllowed(attribute.key)) std::memcpy(At(count++), &attribute, sizeof(Attribute));
    }
    view_ = {At(0), count};
  }
  Attribute* At(size_t i) { return reinterpret_cast<Attribute*>(storage_) + i; }

  static_assert(std::is_trivially_copyable_v<Attribute>);
  std::span<const Attribute> view_;
  alignas(Attribute) std::byte storage_[kMaxFiltered * sizeof(Attribute)];
};

SpanTime ToSpanTime(SteadyTime time) {
  return time == SteadyTime::InfinitePast() ? SpanTime() : absl::ToChronoTime(ToWallTime(time));
}

}  // namespace

void Span::Start(std::string_view name, const TraceContext& parent, AttributeList attributes,
                 const SpanOptions& options, bool scoped) {
  const Allowed allowed(attributes);
  const SpanStart start{.name = name,
                        .kind = options.kind,
                        .parent = &parent,
                        .attributes = allowed.view(),
                        .links = options.links,
                        .time = ToSpanTime(options.start),
                        .scoped = scoped};
  State& state = state_.emplace();
  if (IsUpkeep(parent)) [[unlikely]] {
    // What it causes is upkeep, too.
    state.context = parent;
    state.records[0] = internal::HoldUpkeep(start);
    state.recording = true;
    return;
  }
  // A span reserved while tracing was off is the parent's.
  if (options.reserved != nullptr && options.reserved->span_id != parent.span_id)
    state.context = *options.reserved;
  // Each sink records for itself. The first one that gives the span ids decides them for all.
  for (size_t i = 0; i < kSinkKinds; ++i) {
    TraceSink* sink = internal::InstalledSink(static_cast<SinkKind>(i));
    if (sink == nullptr) continue;
    state.records[i] = sink->Start(start, state.context);
    state.recording |= state.records[i] != nullptr;
  }
}

void Span::RecordAttribute(const AttributeKey& key, const AttributeValue& value) {
  if (!IsAttributeAllowed(key)) return;
  for (auto& record : state_->records) {
    if (record != nullptr) record->SetAttribute(key.name(), value);
  }
}

void Span::RecordEvent(std::string_view name, AttributeList attributes, SteadyTime at) {
  const Allowed allowed(attributes);
  for (auto& record : state_->records) {
    if (record != nullptr) record->AddEvent(name, allowed.view(), ToSpanTime(at));
  }
}

void Span::RecordLink(const TraceContext& context, AttributeList attributes) {
  if (!context.IsValid()) return;
  for (auto& record : state_->records) {
    if (record != nullptr) record->AddLink({context, attributes});
  }
}

void Span::RecordError(std::string_view type, std::string_view message) {
  for (auto& record : state_->records) {
    if (record != nullptr) record->SetError(type, message);
  }
}

// Frees the records: a span that has ended does nothing more.
void Span::EndStarted(SteadyTime end) {
  for (auto& record : state_->records) {
    if (record != nullptr) record->End(ToSpanTime(end));
  }
  state_.reset();
}

TraceContext ReserveSpan(const TraceContext& parent) {
  if (IsUpkeep(parent)) return parent;
  TraceContext context = parent;
  // A sink that will not record the span leaves the parent's id to the next.
  for (size_t i = 0; IsTracing() && i < kSinkKinds && context.span_id == parent.span_id; ++i) {
    if (TraceSink* sink = internal::InstalledSink(static_cast<SinkKind>(i))) context = sink->Reserve(parent);
  }
  return context;
}

const TraceContext& Span::context() const { return state_.has_value() ? state_->context : kNoContext; }

void Scope::Enter(const TraceContext& context, Span* span) {
  // Scopes are a list on the stacks of their thread, so entering and leaving one needs no lock.
  context_ = &context;
  span_ = span;
  outer_ = std::exchange(current_scope, this);
}

void Scope::Leave() { current_scope = outer_; }

void ScopedSpan::Start(std::string_view name, const TraceContext& parent, AttributeList attributes) {
  span_.Start(name, parent, attributes, {}, true);
  scope_.Enter(span_.context(), &span_);
}

const TraceContext& CurrentContext() {
  return current_scope == nullptr ? kNoContext : *current_scope->context_;
}

Span* CurrentSpan() { return current_scope == nullptr ? nullptr : current_scope->span_; }

std::string CurrentTraceId() {
  const TraceContext& context = CurrentContext();
  return context.IsValid() ? context.TraceIdHex() : std::string();
}

void SetAttribute(const AttributeKey& key, const AttributeValue& value) {
  if (Span* span = CurrentSpan()) span->SetAttribute(key, value);
}

void AddEvent(std::string_view name, AttributeList attributes) {
  if (Span* span = CurrentSpan()) span->AddEvent(name, attributes);
}

void SetError(const absl::Status& status) {
  if (Span* span = CurrentSpan()) span->SetError(status);
}

bool IsTelemetryEnabled() { return telemetry_enabled.load(std::memory_order_relaxed) || IsTracing(); }

namespace internal {
void SetTelemetryEnabled(bool enabled) { telemetry_enabled.store(enabled, std::memory_order_relaxed); }
}  // namespace internal

}  // namespace tensorcast::otel
