"""Programmatic dependent launch: a kernel of a CUDA graph is launched while the kernel before it still runs.

It waits on the device for the end of the kernel before it, so that only its launch overlaps. From compute capability
9.0 on (CUDA C++ Programming Guide, Programmatic Dependent Launch; PTX ISA, griddepcontrol).
"""

from __future__ import annotations

import re
from typing import Any

from romou.devices.backends.cuda.driver import value

# The head of a kernel in a module's text: a declaration or a definition, with the comment above.
KERNEL = re.compile(r'^(?:// .*\n)*extern "C" __global__ .*?(?P<name>\w+)\(\w[^(]*\) ?(?P<end>[;{])$', re.MULTILINE)
# A module with this variable has only kernels that wait. A graph may have kernels of modules that were saved earlier.
_MARK = "romou_kernels_wait"
# The next kernel is launched when all groups of this one have ended, but before their results are visible. An earlier
# launch (griddepcontrol.launch_dependents) is slower: its groups crowd on the multiprocessors that are free first.
# Three networks took 3% to 24% longer than without any overlap on an NVIDIA H100. It pays in front of kernels that read
# constants before they wait: products of one row with int4 weights, one after the other, took 3% to 9% less.
WAIT = f"""
#if __CUDA_ARCH__ >= 900
__device__ int {_MARK} = 1;
#endif

__device__ __forceinline__ void wait_for_kernels_before() {{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}}

__device__ __forceinline__ void start_kernels_behind() {{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}}
"""


def with_waits(source: str) -> str:
    """Return CUDA text in which each kernel waits for the kernels before it.

    It does so first of all, unless its text has the call at another place.
    """
    call = "wait_for_kernels_before();"
    heads = list(KERNEL.finditer(source))
    ends = [head.start() for head in heads[1:]] + [len(source)]
    for head, end in reversed([*zip(heads, ends, strict=True)] if heads else []):
        if head["end"] == "{" and call not in source[head.end() : end]:
            source = f"{source[: head.end()]}\n  {call}{source[head.end() :]}"
    return source


def overlap(cuda: Any, graph: Any) -> None:
    """Let kernels of a captured graph be launched before the kernels that they depend on have ended.

    A dependency on something else, or of a kernel that does not wait, stays as it is.

    cuda: the module `cuda.bindings.driver`.
    """
    *_, count = value(cuda, cuda.cuGraphGetEdges(graph))
    befores, behinds, *_ = value(cuda, cuda.cuGraphGetEdges(graph, count))
    pairs = [(x, y) for x, y in zip(befores, behinds, strict=True) if _is_kernel(cuda, x) and _waits(cuda, y)]
    if not pairs:
        return
    ends = [list(nodes) for nodes in zip(*pairs, strict=True)]
    overlapped = cuda.CUgraphEdgeData()
    overlapped.from_port = cuda.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
    overlapped.type = int(cuda.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    value(cuda, cuda.cuGraphRemoveDependencies(graph, *ends, None, len(pairs)))
    value(cuda, cuda.cuGraphAddDependencies(graph, *ends, [overlapped] * len(pairs), len(pairs)))


def _is_kernel(cuda: Any, node: Any) -> bool:
    return bool(value(cuda, cuda.cuGraphNodeGetType(node)) == cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL)


def _waits(cuda: Any, node: Any) -> bool:
    if not _is_kernel(cuda, node):
        return False
    function = value(cuda, cuda.cuGraphKernelNodeGetParams(node)).func
    status, *_ = cuda.cuModuleGetGlobal(value(cuda, cuda.cuFuncGetModule(function)), _MARK.encode())
    return bool(status == cuda.CUresult.CUDA_SUCCESS)
