#include "python/src/tracing.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/trace_context.h"
#include "otel/api/attributes.h"
#include "otel/api/span.h"
#include "python/src/errors.h"
#include "python/src/without_gil.h"
#include "tensorcast/telemetry.h"

namespace nb = nanobind;

namespace tensorcast::python {
namespace {

// Calls `record` with the value as telemetry has it; any other value is told as its text.
template <class Record>
void WithValue(nb::handle value, Record record) {
  // bool is tried first: in Python a bool is an int, too.
  if (nb::isinstance<nb::bool_>(value)) return record(nb::cast<bool>(value));
  if (nb::isinstance<nb::float_>(value)) return record(nb::cast<double>(value));
  int64_t number = 0;
  if (nb::isinstance<nb::int_>(value) && nb::try_cast(value, number)) return record(number);
  record(std::string(nb::str(value).c_str()));
}

// A span that one `with` begins and ends, so that one thread at a time uses it.
class PythonSpan {
 public:
  PythonSpan(const std::string& name, const std::string& parent, const nb::dict& attributes)
      : span_(name, TraceContext::FromTraceparent(parent).value_or(TraceContext{})) {
    for (const auto& [key, value] : attributes) SetAttribute(nb::str(key).c_str(), value);
  }

  // "" where spans are not recorded.
  std::string traceparent() const { return span_.context().ToTraceparent(); }

  void SetAttribute(const std::string& key, nb::handle value) {
    if (!span_.recording()) return;
    // The program chose these keys itself, so the list of allowed ones does not apply to them.
    otel::AllowAttribute(key);
    WithValue(value, [&](const auto& known) { span_.SetAttribute(std::string_view(key), known); });
  }
  // The first eight attributes: an event's are a list that the compiler counts.
  void AddEvent(const std::string& name, const nb::dict& attributes) {
    if (!span_.recording()) return;
    std::vector<std::pair<std::string, std::string>> kept;
    for (const auto& [key, value] : attributes) {
      if (kept.size() == 8) break;
      kept.emplace_back(nb::str(key).c_str(), nb::str(value).c_str());
      otel::AllowAttribute(kept.back().first);
    }
    AddEventWith(name, kept, std::make_index_sequence<9>());
  }
  void SetError(const std::string& type, const std::string& message) { span_.SetError(type, message); }
  void End() { span_.End(); }

 private:
  // The number of an event's attributes has to be known to the compiler, so there is a variant for each
  // number from 0 to 8.
  template <size_t... kCounts>
  void AddEventWith(const std::string& name, const std::vector<std::pair<std::string, std::string>>& kept,
                    std::index_sequence<kCounts...>) {
    (..., (kept.size() == kCounts ? AddEventOf(name, kept, std::make_index_sequence<kCounts>()) : void()));
  }
  template <size_t... kIndices>
  void AddEventOf(const std::string& name,
                  [[maybe_unused]] const std::vector<std::pair<std::string, std::string>>& kept,
                  std::index_sequence<kIndices...>) {
    span_.AddEvent(name, {otel::Attribute{std::string_view(kept[kIndices].first), kept[kIndices].second}...});
  }

  otel::Span span_;
};

// Telemetry of the process, until it is stopped: then what is left is sent, within seconds.
class PythonTelemetry {
 public:
  explicit PythonTelemetry(std::shared_ptr<void> telemetry) : telemetry_(std::move(telemetry)) {}
  void Stop() {
    // The telemetry is taken out with the GIL held, so that a second stop finds nothing, and ended without
    // it, since what is left is sent now.
    std::shared_ptr<void> ending = std::move(telemetry_);
    const WithoutGil released;
    ending.reset();
  }

 private:
  std::shared_ptr<void> telemetry_;
};

PythonTelemetry Start(const std::string& endpoint, const std::string& exporter,
                      std::vector<std::string> headers, const std::string& service_name) {
  auto started = client::StartTelemetry({.endpoint = endpoint,
                                         .exporter = exporter,
                                         .headers = std::move(headers),
                                         .service_name = service_name});
  if (!started.ok()) Raise(started.status());
  return PythonTelemetry(*std::move(started));
}

}  // namespace

void BindTracing(nb::module_& module) {
  nb::class_<PythonSpan>(module, "Span")
      .def(nb::init<const std::string&, const std::string&, const nb::dict&>(), nb::arg("name"),
           nb::arg("parent"), nb::arg("attributes"),
           nb::sig("def __init__(self, name: str, parent: str, attributes: dict[str, typing.Any]) -> None"))
      .def_prop_ro("traceparent", &PythonSpan::traceparent)
      .def("set_attribute", &PythonSpan::SetAttribute, nb::arg("key"), nb::arg("value"))
      .def("add_event", &PythonSpan::AddEvent, nb::arg("name"), nb::arg("attributes"),
           nb::sig("def add_event(self, name: str, attributes: dict[str, typing.Any]) -> None"))
      .def("set_error", &PythonSpan::SetError, nb::arg("type"), nb::arg("message"))
      .def("end", &PythonSpan::End);
  nb::class_<PythonTelemetry>(module, "Telemetry").def("stop", &PythonTelemetry::Stop);
  module.def("start_telemetry", &Start, nb::arg("endpoint"), nb::arg("exporter"), nb::arg("headers"),
             nb::arg("service_name"));
  module.def("is_tracing", &otel::IsTracing);
}

}  // namespace tensorcast::python
