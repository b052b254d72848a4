// An S3-compatible store in the process of a test: objects of one bucket in path style, in memory, over
// FakeServer. It reads, lists, writes (also in parts) and removes. It checks signatures by signing each
// request itself. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "objects/credentials/credentials.h"
#include "objects/testing/fake_server.h"

namespace tensorcast::objects::testing {

class FakeS3 {
 public:
  struct Options {
    std::string bucket = "bucket";
    std::string region = "us-east-1";  // until Move
    std::optional<Credentials> keys;   // that requests have to be signed with
    bool ignores_if_match = false;
    bool keeps_versions = false;
    int page = 1000;  // names in a page of a list
    std::function<absl::Time()> wall_clock = absl::Now;
    // Answers in place of the store, where it gives a reply.
    std::function<std::optional<FakeReply>(const FakeRequest&)> first;
  };
  FakeS3() : FakeS3(Options()) {}
  explicit FakeS3(Options options);

  void Put(const std::string& key, const std::string& bytes);
  // As if it had been written in so many parts.
  void PutParts(const std::string& key, const std::string& bytes, size_t parts);
  void Remove(const std::string& key);
  std::vector<std::string> keys() const;                          // ascending
  std::optional<std::string> Find(const std::string& key) const;  // the bytes of the latest version
  size_t uploads() const;                                         // neither finished nor aborted
  // From now on requests have to be signed for this region; the reply to another one names it, as AWS's does.
  void Move(const std::string& region);
  FakeServer& server() { return server_; }
  const FakeServer& server() const { return server_; }
  std::string url() const { return server_.url(); }

 private:
  struct Version {
    std::string bytes;
    size_t parts = 0;  // 0: it was written at once
    absl::Time written;
  };
  struct Upload {
    std::string key;
    std::map<int, std::string> parts;
    absl::Time begun;
  };

  FakeReply Answer(const FakeRequest& request);
  FakeReply Get(FakeRequest request, const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FakeReply List(const FakeRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FakeReply Write(const FakeRequest& request, const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FakeReply ListUploads(const FakeRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FakeReply Finish(const FakeRequest& request, const std::string& upload_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int Add(const std::string& key, Version version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why the request is not well signed; empty: it is.
  std::string WrongWith(const FakeRequest& request, const std::string& region) const;

  const Options options_;
  mutable absl::Mutex mutex_;
  std::string region_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::map<int, Version>> objects_ ABSL_GUARDED_BY(mutex_);  // by version
  std::map<std::string, Upload> uploads_ ABSL_GUARDED_BY(mutex_);                  // by id
  int versions_ ABSL_GUARDED_BY(mutex_) = 0;
  FakeServer server_;  // the last: it answers from the rest
};

}  // namespace tensorcast::objects::testing
