#include "daemon/service/promised_digests.h"

#include <algorithm>
#include <span>
#include <thread>
#include <utility>

#include "base/aside.h"
#include "base/parallel.h"
#include "base/status.h"
#include "objects/hf/hub_cache.h"

namespace tensorcast::daemon {
namespace {

constexpr uint64_t kStepBytes = uint64_t{4} << 20;  // between two looks at the context
constexpr size_t kMaxThreads = 8;

absl::Status ReadOn(const RequestContext& context, ObjectReader& object, uint64_t end,
                    objects::Sha256& digest) {
  for (uint64_t at = 0; at < end; at += kStepBytes) {
    TC_ASSIGN_OR_RETURN(const std::string read,
                        ReadBytes(context, object, at, std::min(kStepBytes, end - at)));
    digest.Add(std::as_bytes(std::span(read)));
  }
  return absl::OkStatus();
}

// The front of an object. Aside, since the file system of a file may hang; the replica is read here.
absl::StatusOr<std::shared_ptr<objects::Sha256>> DigestFront(const RequestContext& context,
                                                             std::shared_ptr<ObjectReader> object,
                                                             uint64_t bytes) {
  return RunAside<std::shared_ptr<objects::Sha256>>(
      context, "check the SHA-256 of an import",
      [context, object = std::move(object), bytes]() -> absl::StatusOr<std::shared_ptr<objects::Sha256>> {
        auto digest = std::make_shared<objects::Sha256>();
        TC_RETURN_IF_ERROR(ReadOn(context, *object, bytes, *digest));
        return digest;
      });
}

// What the tensors do not cover is the header in front of them: safetensors has no holes.
absl::Status CheckOne(const RequestContext& context, const PromisedObject& promised,
                      const ReplicaLease& lease) {
  const ObjectIdentity& identity = promised.object->identity();
  // The image in host memory has the tensors' bytes, so only the header has to be read. Otherwise the whole
  // object is read again.
  const bool here = lease.memory().host != nullptr && !promised.extents.empty();
  TC_ASSIGN_OR_RETURN(
      const std::shared_ptr<objects::Sha256> digest,
      DigestFront(context, promised.object, here ? promised.extents.front().object_offset : identity.bytes));
  // The bytes are read in the order of the object, as the promised digest covers it.
  if (here) {
    for (const ObjectExtent& extent : promised.extents) {
      for (uint64_t at = 0; at < extent.bytes; at += kStepBytes) {
        TC_RETURN_IF_ERROR(context.Check("check the SHA-256 of an import"));
        const uint64_t bytes = std::min(kStepBytes, extent.bytes - at);
        for (const ConstHostSpan span : lease.HostSpans(extent.image_offset + at, bytes)) digest->Add(span);
      }
    }
  }
  return objects::CheckSha256(identity, digest->Hex());
}

}  // namespace

std::vector<PromisedObject> FindPromises(const ObjectReaders& objects,
                                         const std::vector<ObjectExtent>& extents) {
  std::vector<PromisedObject> found;
  for (size_t i = 0; i < objects.size(); ++i) {
    if (objects::PromisedSha256(objects[i]->identity()).empty()) continue;
    PromisedObject& promised = found.emplace_back(PromisedObject{.object = objects[i]});
    for (const ObjectExtent& extent : extents) {
      if (extent.object == i) promised.extents.push_back(extent);
    }
    std::ranges::sort(promised.extents, {}, &ObjectExtent::object_offset);
  }
  return found;
}

absl::Status CheckPromises(const RequestContext& context, const std::vector<PromisedObject>& promised,
                           const ReplicaLease& lease) {
  // Each object has a digest of its own, so that they are checked side by side.
  std::vector<absl::Status> checked(promised.size());
  const size_t threads = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kMaxThreads);
  ForEachInParallel(promised.size(), threads,
                    [&](size_t i) { checked[i] = CheckOne(context, promised[i], lease); });
  for (const absl::Status& one : checked) TC_RETURN_IF_ERROR(one);
  return absl::OkStatus();
}

}  // namespace tensorcast::daemon
