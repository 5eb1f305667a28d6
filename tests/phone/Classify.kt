// Classifies the pixels in a file with the sample's code, on a desktop's JVM: FOLDER PIXELS.bin
import dev.romou.Model
import dev.romou.ModelException
import dev.romou.sample.bench
import dev.romou.sample.classify
import dev.romou.sample.pictureSize
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder

fun main(arguments: Array<String>) {
    Model(File(arguments[0])).use { model ->
        println(model.inputs.map { "${it.name} ${it.dtype} ${it.shape} ${it.bytes}" })
        val (width, height) = pictureSize(model)
        val pixels = IntArray(width * height)
        ByteBuffer.wrap(File(arguments[1]).readBytes()).order(ByteOrder.nativeOrder()).asIntBuffer().get(pixels)
        for ((number, score) in classify(model, pixels)) println("class $number  $score")
        println(model.about)
        File(arguments[2]).writeText(bench(model, "picture", 1, 2))
        val mistakes = listOf({ model.set("nonesuch", FloatArray(3)) }, { model.get("nonesuch", Model.buffer(8)) }, { model.set("picture", ByteBuffer.wrap(ByteArray(8))) })
        for (mistake in mistakes) {
            try { mistake() } catch (error: ModelException) { println("error ${error.code} ${error.message}") }
        }
    }
    try { Model(File("/nonesuch")) } catch (error: ModelException) { println("error ${error.code} ${error.message}") }
}
