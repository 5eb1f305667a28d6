package dev.romou

import java.io.Closeable
import java.io.File
import java.nio.ByteBuffer

/** A model that `romou export` wrote. Its first start in a folder takes long: the driver compiles the kernels, and the folder keeps them. */
class Model(folder: File, variant: String? = null) : Closeable {
    private var handle = Native.open(folder.path, variant, null)
    val inputs: List<Tensor> get() = Native.tensors(handle, true).asList()
    /** After `reshape`, the outputs of the last run. */
    val outputs: List<Tensor> get() = Native.tensors(handle, false).asList()
    /** The variant and device that run, and the milliseconds of each step of the start, as JSON. */
    val about: String get() = Native.about(handle)

    /** Copy a direct buffer in the device's byte order to the device. */
    fun set(input: String, buffer: ByteBuffer) = Native.set(handle, input, buffer)
    fun set(input: String, numbers: FloatArray) = set(input, buffer(4 * numbers.size).also { it.asFloatBuffer().put(numbers) })
    /** Give an input of a model of several shapes a shape: one of them, or a smaller one if the model pads. The input has to be set again. */
    fun reshape(input: String, vararg shape: Long) = Native.reshape(handle, input, shape)
    fun run() = Native.run(handle)
    fun get(output: String, buffer: ByteBuffer) = Native.get(handle, output, buffer)
    fun floats(output: String): FloatArray {
        val buffer = buffer(outputs.firstOrNull { it.name == output }?.bytes ?: 0).also { get(output, it) }
        return FloatArray(buffer.capacity() / 4).also { buffer.asFloatBuffer().get(it) }
    }
    /** Read tokens of a decoder, after those that it has read, and return the most likely next one. */
    fun decode(vararg tokens: Long): Long = Native.decode(handle, tokens)
    /** Forget all tokens after the first `count`. */
    fun rewind(count: Long) = Native.rewind(handle, count)
    override fun close() = Native.close(handle).also { handle = 0 }

    companion object { fun buffer(bytes: Int): ByteBuffer = Native.buffer(bytes) }
}
