#include "otel/sdk/counter_cells.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tensorcast::otel::sdk {
namespace {

constexpr std::string_view kOther = "other";

size_t HashOf(LabelValues labels) {
  size_t hash = 0;
  for (const std::string_view label : labels) hash = hash * 31 + std::hash<std::string_view>()(label);
  return hash;
}

}  // namespace

// A cell is made once, never changes but for its total, and lives as long as its counter: so a thread that
// finds it in a list may read it without a lock.
struct CounterCells::Cell {
  Cell(size_t own_hash, LabelValues values, Cell* next_cell)
      : hash(own_hash),
        texts(values.begin(), values.end()),
        labels(texts.begin(), texts.end()),
        next(next_cell) {}
  // `labels` are views of `texts`.
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;

  const size_t hash;
  const std::vector<std::string> texts;
  const std::vector<std::string_view> labels;
  Cell* const next;
  std::atomic<int64_t> total{0};
};

CounterCells::CounterCells() = default;

CounterCells::~CounterCells() {
  for (auto& list : lists_) {
    for (Cell* cell = list; cell != nullptr;) delete std::exchange(cell, cell->next);
  }
}

void CounterCells::Add(int64_t value, LabelValues labels) {
  const size_t hash = HashOf(labels);
  // Nearly every call finds its cell, and takes no lock.
  Cell* found = Find(hash, labels);
  Cell& cell = found != nullptr ? *found : FindOrMake(hash, labels);
  // Nothing else is read by way of a total, so no order is needed.
  cell.total.fetch_add(value, std::memory_order_relaxed);
}

void CounterCells::ForEach(const std::function<void(int64_t, LabelValues)>& read) const {
  for (const auto& list : lists_) {
    for (const Cell* cell = list.load(std::memory_order_acquire); cell != nullptr; cell = cell->next) {
      read(cell->total.load(std::memory_order_relaxed), cell->labels);
    }
  }
}

CounterCells::Cell* CounterCells::Find(size_t hash, LabelValues labels) const {
  Cell* cell = lists_[hash % lists_.size()].load(std::memory_order_acquire);
  while (cell != nullptr && (cell->hash != hash || !std::ranges::equal(cell->labels, labels))) {
    cell = cell->next;
  }
  return cell;
}

CounterCells::Cell& CounterCells::FindOrMake(size_t hash, LabelValues labels) {
  // One thread at a time makes cells; readers and adders need no lock. The cell is whole before its list
  // names it (release), and a reader of the list sees it whole (acquire).
  const std::lock_guard lock(growing_);
  std::vector<std::string_view> other;
  // Labels can come from outside; what is too many goes into one cell, so that the sum stays right.
  if (cells_ >= kMaxCells) {
    other.assign(labels.size(), kOther);
    labels = other;
    hash = HashOf(labels);
  }
  if (Cell* const made_meanwhile = Find(hash, labels)) return *made_meanwhile;
  ++cells_;
  std::atomic<Cell*>& list = lists_[hash % lists_.size()];
  auto* const cell = new Cell(hash, labels, list.load(std::memory_order_relaxed));
  list.store(cell, std::memory_order_release);
  return *cell;
}

}  // namespace tensorcast::otel::sdk
