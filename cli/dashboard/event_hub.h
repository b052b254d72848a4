// Sends the changes of documents to any number of tabs. Tabs with the same view and parameters share one
// poller thread, which runs while a tab watches. A slow tab gets the newest document and misses earlier
// documents.
//
// Thread-safe. A Tab has one owner thread and must not outlive its hub.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cli/dashboard/http_request.h"

namespace tensorcast::dashboard {

// Makes the document of a view. Blocks for a bounded time.
using DocumentSource =
    std::function<absl::StatusOr<nlohmann::json>(const std::string& view, const Query& query)>;

// {"error": {"code", "message", "details"}}, the form that commands print with --json.
nlohmann::json ErrorDocument(const absl::Status& status);
// The document as one line; replaces bytes that are not UTF-8.
std::string ToText(const nlohmann::json& document);

class EventHub {
 public:
  // `interval` returns the time between two polls of a view. A view with slow polls is polled less often: its
  // polls take at most about 5 % of the time.
  EventHub(DocumentSource source, std::function<absl::Duration(const std::string& view)> interval);
  ~EventHub();
  EventHub(const EventHub&) = delete;
  EventHub& operator=(const EventHub&) = delete;

  class Tab;
  std::unique_ptr<Tab> Watch(const std::string& view, const Query& query) ABSL_LOCKS_EXCLUDED(mutex_);
  size_t pollers() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Topic;
  void Poll(Topic& topic);
  void Leave(Topic& topic) ABSL_LOCKS_EXCLUDED(mutex_);

  const DocumentSource source_;
  const std::function<absl::Duration(const std::string& view)> interval_;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::unique_ptr<Topic>> topics_ ABSL_GUARDED_BY(mutex_);  // by view and parameters
};

class EventHub::Tab {
 public:
  ~Tab();
  Tab(const Tab&) = delete;
  Tab& operator=(const Tab&) = delete;

  // The next event in the format of Server-Sent Events; empty if no event came within `timeout`.
  std::string Next(absl::Duration timeout);

 private:
  friend class EventHub;
  Tab(EventHub& hub, Topic& topic) : hub_(hub), topic_(topic) {}

  EventHub& hub_;
  Topic& topic_;
  uint64_t document_ = 0;  // number of this tab's document; 0: none
  uint64_t problem_ = 0;
};

}  // namespace tensorcast::dashboard
