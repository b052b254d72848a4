// Writes objects to S3-compatible buckets, lists and removes them, and ends uploads that a crash left behind.
//
// An object appears whole or not at all. A large object is uploaded in parts, several at a time. A write that
// fails or is cancelled aborts its upload, so that the store deletes the parts. If the process dies during a
// write, or the abort fails, an unfinished upload remains: ListUploads finds it.
//
// Checksums: each signed request has the SHA-256 of its body in the header x-amz-content-sha256, and the
// signature covers that header. A server that checks signatures compares the digest with the received body.
// It refuses a damaged part, and the writer sends the part again. The newer headers x-amz-checksum-* would
// only repeat the digest, and fewer servers support them. Requests without credentials have no digest.
//
// Thread-safe. Errors are those of S3Client.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "core/artifact/origin.h"
#include "core/memory/host_pool.h"
#include "objects/s3/s3_client.h"

namespace tensorcast::objects {

// Fills `destination` with the object's bytes from `offset` on. Called once for each part, by several threads
// at the same time. An error ends the write.
using FillBytes =
    std::function<absl::Status(const RequestContext& context, uint64_t offset, HostSpan destination)>;

struct StoredObject {
  std::string uri;
  uint64_t bytes = 0;
  absl::Time written;  // by the store's clock; InfiniteFuture: the store gave no valid time
};

// An upload that was neither finished nor aborted.
struct S3Upload {
  std::string uri;
  std::string id;
  absl::Time begun;  // by the store's clock; InfiniteFuture: the store gave no valid time
};

class S3Writer {
 public:
  struct Options {
    uint64_t part_bytes = uint64_t{16} << 20;  // larger if there would be more than 10,000 parts
    int parts_at_once = 4;                     // each concurrent part needs a buffer of its size
    absl::Duration abort_timeout = absl::Seconds(20);
  };

  explicit S3Writer(std::shared_ptr<S3Client> client) : S3Writer(std::move(client), Options()) {}
  S3Writer(std::shared_ptr<S3Client> client, const Options& options)
      : client_(std::move(client)), options_(options) {}

  // Writes the object of `bytes` bytes, and replaces an existing one. Blocks until the store has it. Returns
  // the identity of the written version. DATA_LOSS if the stored object has another size.
  absl::StatusOr<ObjectIdentity> Write(const RequestContext& context, const std::string& uri, uint64_t bytes,
                                       const FillBytes& fill) const;
  // The identity of the current version. NOT_FOUND if the object does not exist.
  absl::StatusOr<ObjectIdentity> Describe(const RequestContext& context, const std::string& uri) const;
  // OK also if the object does not exist.
  absl::Status Remove(const RequestContext& context, const std::string& uri) const;

  // All objects with URIs that begin with `prefix`, in ascending order of the URIs.
  absl::StatusOr<std::vector<StoredObject>> List(const RequestContext& context,
                                                 const std::string& prefix) const;
  // All unfinished uploads to URIs that begin with `prefix`, also those of other processes.
  absl::StatusOr<std::vector<S3Upload>> ListUploads(const RequestContext& context,
                                                    const std::string& prefix) const;
  // OK also if the upload has already ended.
  absl::Status Abort(const RequestContext& context, const S3Upload& upload) const;

 private:
  class Parts;

  absl::Status Put(const RequestContext& context, const S3Name& name, uint64_t bytes,
                   const FillBytes& fill) const;
  absl::StatusOr<std::string> Begin(const RequestContext& context, const S3Name& name) const;
  // Returns the part's ETag.
  absl::StatusOr<std::string> SendPart(const RequestContext& context, const S3Name& name,
                                       const std::string& upload_id, size_t number,
                                       std::string_view bytes) const;
  absl::Status Finish(const RequestContext& context, const S3Name& name, const std::string& upload_id,
                      const std::vector<std::string>& etags) const;
  absl::Status Upload(const RequestContext& context, const S3Name& name, uint64_t bytes,
                      const FillBytes& fill) const;

  const std::shared_ptr<S3Client> client_;
  const Options options_;
};

}  // namespace tensorcast::objects
