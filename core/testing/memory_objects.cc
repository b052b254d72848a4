#include "core/testing/memory_objects.h"

#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::testing {

class MemoryObjects::Reader final : public ObjectReader {
 public:
  Reader(std::shared_ptr<Contents> contents, ObjectIdentity identity)
      : contents_(std::move(contents)), identity_(std::move(identity)) {}

  const ObjectIdentity& identity() const override { return identity_; }
  const ObjectTraits& traits() const override { return traits_; }

  absl::Status Read(const RequestContext& context, uint64_t offset, HostSpan destination,
                    uint64_t needed) override {
    TC_RETURN_IF_ERROR(context.Check(identity_.uri));
    TC_RETURN_IF_ERROR(CheckObjectRange(identity_, offset, needed));
    absl::MutexLock lock(&contents_->mutex);
    const auto object = contents_->objects.find(identity_.uri);
    if (object == contents_->objects.end() || absl::StrCat(object->second.version) != identity_.version) {
      return absl::FailedPreconditionError(absl::StrCat("read ", identity_.uri, ": it changed"));
    }
    std::memcpy(destination.data(), object->second.bytes.data() + offset, needed);
    return absl::OkStatus();
  }
  absl::Status CheckUnchanged(const RequestContext& /*context*/) override { return absl::OkStatus(); }

 private:
  const std::shared_ptr<Contents> contents_;
  const ObjectIdentity identity_;
  const ObjectTraits traits_;
};

class MemoryObjects::Folder final : public ObjectFolder {
 public:
  Folder(std::shared_ptr<Contents> contents, std::string prefix)
      : contents_(std::move(contents)), prefix_(std::move(prefix)) {}

  absl::StatusOr<std::vector<std::string>> List(const RequestContext& /*context*/) const override {
    std::vector<std::string> names;
    absl::MutexLock lock(&contents_->mutex);
    for (const auto& [uri, object] : contents_->objects) {
      if (!absl::StartsWith(uri, prefix_)) continue;
      const std::string_view below = std::string_view(uri).substr(prefix_.size());
      const std::string name(below.substr(0, below.find('/')));
      if (names.empty() || names.back() != name) names.push_back(name);
    }
    return names;
  }
  absl::StatusOr<std::vector<std::string>> ListBelow(const RequestContext& /*context*/,
                                                     size_t /*max*/) const override {
    std::vector<std::string> paths;
    absl::MutexLock lock(&contents_->mutex);
    for (const auto& [uri, object] : contents_->objects) {
      if (!absl::StartsWith(uri, prefix_)) continue;
      paths.push_back(uri.substr(prefix_.size()));
      if (IsHiddenPath(paths.back())) paths.pop_back();
    }
    return paths;
  }
  absl::StatusOr<std::shared_ptr<ObjectReader>> Open(const RequestContext& /*context*/,
                                                     const std::string& name) const override {
    return MemoryObjects::Open(contents_, absl::StrCat(prefix_, name));
  }

 private:
  const std::shared_ptr<Contents> contents_;
  const std::string prefix_;
};

void MemoryObjects::Put(const std::string& uri, std::string bytes) {
  absl::MutexLock lock(&contents_->mutex);
  contents_->objects[uri] = {std::move(bytes), ++contents_->versions};
}

void MemoryObjects::Remove(const std::string& uri) {
  absl::MutexLock lock(&contents_->mutex);
  contents_->objects.erase(uri);
}

absl::StatusOr<std::shared_ptr<ObjectReader>> MemoryObjects::Open(const std::shared_ptr<Contents>& contents,
                                                                  const std::string& uri) {
  absl::MutexLock lock(&contents->mutex);
  const auto object = contents->objects.find(uri);
  if (object == contents->objects.end()) {
    return absl::NotFoundError(absl::StrCat("open ", uri, ": no object"));
  }
  return std::make_shared<Reader>(contents, ObjectIdentity{.uri = uri,
                                                           .bytes = object->second.bytes.size(),
                                                           .version = absl::StrCat(object->second.version)});
}

absl::StatusOr<FoundObject> MemoryObjects::Find(const RequestContext& context, const std::string& uri) const {
  FoundObject found;
  absl::StatusOr<std::shared_ptr<ObjectReader>> object = Open(contents_, uri);
  if (object.ok()) {
    found.object = *std::move(object);
    return found;
  }
  found.folder = std::make_shared<Folder>(contents_, absl::StrCat(uri, "/"));
  TC_ASSIGN_OR_RETURN(const std::vector<std::string> names, found.folder->List(context));
  if (names.empty()) return object.status();
  return found;
}

absl::StatusOr<std::shared_ptr<ObjectReader>> MemoryObjects::OpenAgain(const RequestContext& /*context*/,
                                                                       const ObjectIdentity& object) const {
  TC_ASSIGN_OR_RETURN(std::shared_ptr<ObjectReader> opened, Open(contents_, object.uri));
  if (opened->identity() == object) return opened;
  return absl::FailedPreconditionError(absl::StrCat(
      "open ", object.uri, " again: ", DescribeChange(object, opened->identity()), "; import it again"));
}

}  // namespace tensorcast::testing
