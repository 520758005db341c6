// How the threads of a block run as threads of the system (host_runtime.cpp), for the address and the thread sanitizer.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "device.h"

namespace luce_host {
namespace {

struct Failure {};

// Kept from block to block: under a sanitizer it takes long to start one. Each has a lock of its own, so that no thread's end
// comes before another's beginning.
struct Worker {
  std::mutex lock;
  std::condition_variable changed;
  void (*run)(const void*) = nullptr;  // while it has something to do
  const void* call = nullptr;
  Place* place = nullptr;

  void work(i32 thread) {
    current = thread;
    for (;;) {
      {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [&] { return run != nullptr; });
      }
      block = place;
      try { run(call); } catch (const Failure&) {}
      std::lock_guard<std::mutex> guard(lock);
      run = nullptr;
      changed.notify_one();
    }
  }
  void begin(void (*what)(const void*), const void* with) {
    std::lock_guard<std::mutex> guard(lock);
    run = what, call = with, place = block;
    changed.notify_one();
  }
  void join() {
    std::unique_lock<std::mutex> held(lock);
    changed.wait(held, [&] { return run == nullptr; });
  }
};
std::deque<Worker>& workers = *new std::deque<Worker>;  // they never end

void run_threads(void (*run)(const void*), const void* call) {
  while ((i32)workers.size() < block->threads) {
    i32 thread = (i32)workers.size();
    Worker& made = workers.emplace_back();
    std::thread([&made, thread] { made.work(thread); }).detach();
  }
  for (i32 i = 0; i < block->threads; i++) workers[(size_t)i].begin(run, call);
  for (i32 i = 0; i < block->threads; i++) workers[(size_t)i].join();
}

}  // namespace
}  // namespace luce_host
