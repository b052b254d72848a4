#include "rpc/request_attributes.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/types.pb.h"

namespace tensorcast::rpc {
namespace {

namespace attr = otel::attr;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

struct TextField {
  std::string_view name;
  otel::AttributeKey key;
};
constexpr TextField kTextFields[] = {
    {"artifact_id", attr::kArtifactId}, {"key", attr::kKey},        {"replica_id", attr::kReplicaId},
    {"grant_id", attr::kTransportId},   {"node_id", attr::kNodeId}, {"receiver_node_id", attr::kPeerNodeId},
};
// What a request is about may be one level down.
constexpr std::string_view kNested[] = {"node", "location", "destination", "binding", "replica", "origin"};

std::string_view LocationText(int kind) {
  switch (kind) {
    case v1::LOCATION_KIND_GPU:
      return "gpu";
    case v1::LOCATION_KIND_CPU:
      return "cpu";
    case v1::LOCATION_KIND_DISK:
      return "disk";
    default:
      return "";
  }
}

// Where the ids are in one type of message.
struct Layout {
  std::vector<std::pair<const FieldDescriptor*, otel::AttributeKey>> texts;
  std::vector<std::pair<const FieldDescriptor*, const Layout*>> nested;
  bool is_location = false;
};

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
    std::unique_ptr<Layout>& made = layouts_[type];
    if (made != nullptr) return *made;
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
    const auto& location = static_cast<const v1::Location&>(message);
    if (const std::string_view kind = LocationText(location.kind()); !kind.empty()) {
      span.SetAttribute(attr::kLocation, kind);
    }
    if (location.kind() == v1::LOCATION_KIND_GPU) span.SetAttribute(attr::kDeviceId, location.device());
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

}  // namespace

void SetRequestAttributes(const Message& request, otel::Span& span) {
  if (!span.recording()) return;
  SetFrom(request, Layouts::Instance().Of(request.GetDescriptor()), span);
}

}  // namespace tensorcast::rpc
