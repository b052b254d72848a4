// An S3-compatible store in the test's process, over FakeServer: one bucket in path style, with its objects
// in memory. It reads, lists, writes (also in parts) and removes. It checks signatures by signing each
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
    std::optional<Credentials> keys;   // requests must be signed with these; absent: no check
    bool ignores_if_match = false;
    bool keeps_versions = false;
    int page = 1000;  // names in a page of a list
    std::function<absl::Time()> wall_clock = absl::Now;
    // Called first for each request; if it gives a reply, the store does not answer.
    std::function<std::optional<FakeReply>(const FakeRequest&)> first;
  };
  FakeS3() : FakeS3(Options()) {}
  explicit FakeS3(Options options);

  void Put(const std::string& key, const std::string& bytes);
  // Puts an object as if it had been written in `parts` parts.
  void PutParts(const std::string& key, const std::string& bytes, size_t parts);
  void Remove(const std::string& key);
  std::vector<std::string> keys() const;                          // ascending
  std::optional<std::string> Find(const std::string& key) const;  // the bytes of the latest version
  size_t uploads() const;                                         // neither finished nor aborted
  // From now on requests must be signed for this region. The reply to a request for another region names this
  // one, as AWS's reply does.
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
  // Why the request's signature is wrong; empty: it is right.
  std::string WrongWith(const FakeRequest& request, const std::string& region) const;

  const Options options_;
  mutable absl::Mutex mutex_;
  std::string region_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::map<int, Version>> objects_ ABSL_GUARDED_BY(mutex_);  // by version
  std::map<std::string, Upload> uploads_ ABSL_GUARDED_BY(mutex_);                  // by id
  int versions_ ABSL_GUARDED_BY(mutex_) = 0;
  FakeServer server_;  // declared last: its threads use the other members
};

}  // namespace tensorcast::objects::testing
