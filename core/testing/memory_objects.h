// A store of objects in memory, which a test writes, changes and removes while they are open. It shows that
// code works with stores that are not files. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/source/object_reader.h"

namespace tensorcast::testing {

// URIs are "mem://<path>". A folder exists while an object lies below it.
class MemoryObjects final : public ObjectStore {
 public:
  void Put(const std::string& uri, std::string bytes);  // new, or as a new version
  void Remove(const std::string& uri);

  absl::StatusOr<FoundObject> Find(const RequestContext& context, const std::string& uri) const override;
  absl::StatusOr<std::shared_ptr<ObjectReader>> OpenAgain(const RequestContext& context,
                                                          const ObjectIdentity& object) const override;

 private:
  class Reader;
  class Folder;
  struct Object {
    std::string bytes;
    uint64_t version = 0;
  };
  // Shared with the readers and folders that were opened.
  struct Contents {
    absl::Mutex mutex;
    std::map<std::string, Object> objects ABSL_GUARDED_BY(mutex);
    uint64_t versions ABSL_GUARDED_BY(mutex) = 0;
  };

  static absl::StatusOr<std::shared_ptr<ObjectReader>> Open(const std::shared_ptr<Contents>& contents,
                                                            const std::string& uri);

  const std::shared_ptr<Contents> contents_ = std::make_shared<Contents>();
};

}  // namespace tensorcast::testing
